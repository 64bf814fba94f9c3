"""Every knob of the service: the record itself, and the words for --help and the README."""

from fused_mlp.service.settings.settings import (
    DEMO_REPOSITORY,
    ENV_PREFIX,
    GROUPS,
    Settings,
    SettingsError,
    join_address,
    load_settings,
    unknown_variables,
)

__all__ = [
    "DEMO_REPOSITORY",
    "ENV_PREFIX",
    "GROUPS",
    "Settings",
    "SettingsError",
    "join_address",
    "load_settings",
    "unknown_variables",
]
