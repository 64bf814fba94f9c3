# SPDX-License-Identifier: Apache-2.0
"""Every error class has its place in the table, and nothing internal is told."""

import pytest

from fused_mlp.service import errors
from fused_mlp.service.errors import CODES, Answer, Code, EngineRefused, ServiceError, answer


def test_every_class_has_a_code() -> None:
    classes = {
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, ServiceError) and item is not ServiceError
    }
    assert classes == {*CODES, EngineRefused}


@pytest.mark.parametrize("error_class", CODES)
def test_text_is_told_with_the_code_of_the_table(error_class: type[ServiceError]) -> None:
    error = error_class("what was expected and what came")
    assert answer(error, "id").code is CODES[error_class]
    assert "what was expected and what came" in answer(error, "id").text


def test_engine_refusal_keeps_its_code_and_says_when_to_retry() -> None:
    told = answer(EngineRefused(8, "the queue is full", retry_after_ms=7), "id")
    assert told == Answer(Code.RESOURCE_EXHAUSTED, "the queue is full", (("retry-after-ms", "7"),))


@pytest.mark.parametrize("error", [ValueError("/secret/path"), EngineRefused(13, "secret traceback")])
def test_internal_error_tells_only_the_request_id(error: Exception) -> None:
    assert answer(error, "abc") == Answer(Code.INTERNAL, "internal error; request id abc")
