"""The settings of the service: the record, its limits, old names, and the texts of --help and of the tables."""

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
