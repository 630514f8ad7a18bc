"""The keys of device.yaml, with the secrets that they name."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coda_executor import ConfigError, mask_secret

log = logging.getLogger("coda_qiskit")

TARGETS = ("cz", "cnot", "iswap", "pcz")
KEYS = {"executor_factory", "backend", "backend_args", "provider", "provider_args", "backend_name", "primitive"}
KEYS |= {"primitive_args", "run_options", "optimization_level", "target", "num_qubits"}
SECRET_WORDS = {"password", "token", "secret", "key", "apikey"}


@dataclass(frozen=True)
class Config:
    """The keys of device.yaml that are this module's. Secrets are in place of the keys that name where they are."""

    backend: str | None = None
    backend_args: Mapping[str, Any] = field(default_factory=dict)
    provider: str | None = None
    provider_args: Mapping[str, Any] = field(default_factory=dict)
    backend_name: str | None = None
    primitive: str | None = None
    primitive_args: Mapping[str, Any] = field(default_factory=dict)
    run_options: Mapping[str, Any] = field(default_factory=dict)
    optimization_level: int = 0
    target: str | None = None
    num_qubits: int | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Config:
        unknown = sorted(str(name) for name in values if name not in KEYS)
        if unknown:
            log.warning("keys of device.yaml that coda_qiskit does not know have no effect: %s", ", ".join(unknown))
        known = {name: value for name, value in values.items() if name in KEYS and value is not None}
        known.pop("executor_factory", None)
        for name, value in known.items():
            if name.endswith(("_args", "_options")):
                if not isinstance(value, Mapping):
                    raise ConfigError(f"{name} is {value!r}; write it as a mapping: {name}: {{name: value}}")
                known[name] = with_secrets(name, value)
        config = cls(**known)
        config.check()
        return config

    def check(self) -> None:
        if self.backend and self.provider:
            raise ConfigError("backend and provider are both set; set one of them")
        if not (self.backend or self.provider or self.primitive):
            raise ConfigError("set backend, provider or primitive to <module>:<attribute>")
        if isinstance(self.optimization_level, bool) or self.optimization_level not in (0, 1, 2, 3):
            raise ConfigError(f"optimization_level is {self.optimization_level!r}; set it to 0, 1, 2 or 3")
        if self.target not in (None, *TARGETS):
            raise ConfigError(f"target is {self.target!r}; set it to one of {', '.join(TARGETS)}")
        if self.num_qubits is not None and (type(self.num_qubits) is not int or self.num_qubits < 1):
            raise ConfigError(f"num_qubits is {self.num_qubits!r}; set it to a whole number from 1")
        if "shots" in self.run_options:
            raise ConfigError("run_options sets shots, which come with each job; remove it")


def with_secrets(where: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with secrets read from where `<name>_env` and `<name>_file` say. Never written in device.yaml."""
    found: dict[str, Any] = {}
    for name, value in args.items():
        stem, _, source = name.rpartition("_")
        if is_secret(stem) and source in ("env", "file"):
            found[stem] = read_secret(f"{where}: {name}", source, str(value))
            mask_secret(found[stem])
        elif is_secret(name) and isinstance(value, (str, int)) and not isinstance(value, bool):
            mask_secret(str(value))
            raise ConfigError(
                f"{where}: {name} holds a secret, which does not belong into this file; set {name}_env to the name "
                f"of an environment variable that has it, or {name}_file to a file"
            )
        else:
            found[name] = nested_secrets(f"{where}: {name}", value)
    return found


def nested_secrets(where: str, value: Any) -> Any:
    """The same in mappings and lists inside of an argument."""
    if isinstance(value, Mapping):
        return with_secrets(where, value)
    if isinstance(value, (list, tuple)):
        return [nested_secrets(where, one) for one in value]
    return value


def is_secret(name: str) -> bool:
    # By whole words: a provider's own argument `tokens_file` is none of ours.
    return not SECRET_WORDS.isdisjoint(name.lower().split("_"))


def read_secret(key: str, source: str, name: str) -> str:
    if source == "env":
        if not os.environ.get(name):
            raise ConfigError(f"{key} is {name}, and this environment variable is not set")
        return os.environ[name]
    try:
        # A FIFO or a device would hold up the start.
        if Path(name).exists() and not Path(name).is_file():
            raise ConfigError(f"{key} is {name}, which is not a file")
        return Path(name).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} is {name}, which can't be read: {error}") from error
