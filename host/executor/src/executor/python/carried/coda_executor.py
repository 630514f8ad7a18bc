"""What an executor in Python code needs: the circuit that it runs, the result that it returns, the device that it has.

coda-host brings this module into every process of an executor, so nothing is installed for it. The names are those of
the Python node (`coda_node.server.ir`, `coda_node.server.executor`): where coda-node is installed, circuits are objects
of its classes, which have the same attributes. So import the classes from here to build results and devices, and as
types; don't test circuits with `isinstance`.

An executor is any object with `run`; a factory makes one:

    class Acme:
        device = Device(num_qubits=5, targets=["cz"], logical_edges=[(0, 1), (1, 2)])

        async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult:
            ...

    def create_executor(settings: Settings) -> Acme:
        return Acme()

Optional methods: `batch_run(jobs)`, which takes pairs of circuit and shots and returns results in order, and
`cancel_current_job()`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "ConfigError",
    "Device",
    "ExecutionResult",
    "ExecutorError",
    "GateOp",
    "IRMetadata",
    "JobExecutor",
    "NativeGate",
    "NativeGateIR",
    "Settings",
    "Unsupported",
    "mask_secret",
    "read_device_config",
]


class ConfigError(Exception):
    """The device config is wrong. The text is shown to the operator, so name the key."""


class ExecutorError(Exception):
    """A run failed. The text is sent to whoever sent the job."""


class Unsupported(NotImplementedError):
    """The device can't run this circuit, and never will."""


class NativeGate(StrEnum):
    """The gates. `rz` and `virtual_z` act alike; `id` waits for its parameter in nanoseconds; angles are radians."""

    RX = "rx"
    RY = "ry"
    RZ = "rz"
    CZ = "cz"
    ISWAP = "iswap"
    CP = "cp"
    ID = "id"
    X90 = "x90"
    Y_MINUS_90 = "y_minus_90"
    VIRTUAL_Z = "virtual_z"
    CNOT = "cnot"


@dataclass(frozen=True, slots=True)
class GateOp:
    """A gate on one or two qubits; of `cnot` the control comes first."""

    gate: NativeGate
    # Lists at run time, as in coda-node, so that comparisons with lists are true under both.
    qubits: Sequence[int]
    params: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class IRMetadata:
    """Where a circuit comes from."""

    source_hash: str = ""
    compiled_at: str = ""
    compiler_version: str = "0.1.0"
    optimization_level: int = 2


@dataclass(frozen=True, slots=True)
class NativeGateIR:
    """A circuit. The host has checked it: its gates are those of its target, and its qubits are in range."""

    target: str
    num_qubits: int
    gates: Sequence[GateOp]
    # Character i of a key of the counts is the outcome of qubit measurements[i]. A qubit may be listed twice.
    measurements: Sequence[int]
    metadata: IRMetadata = IRMetadata()
    version: str = "1.0"

    @classmethod
    def from_json(cls, json_str: str) -> NativeGateIR:
        """Reads a circuit. Keys that a later version may add are ignored."""
        data = json.loads(json_str)
        gates = [
            GateOp(NativeGate(op["gate"]), op["qubits"], [float(param) for param in op.get("params", ())])
            for op in data["gates"]
        ]
        known = {field.name for field in dataclasses.fields(IRMetadata)}
        metadata = IRMetadata(**{name: value for name, value in data["metadata"].items() if name in known})
        version = data.get("version", "1.0")
        return cls(data["target"], data["num_qubits"], gates, data["measurements"], metadata, version)

    def to_json(self) -> str:
        """The circuit as `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), indent=2)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What was measured: how often each key, how long it took, and how many shots were run."""

    counts: Mapping[str, int]
    execution_time_ms: float
    shots_completed: int


@dataclass(frozen=True, slots=True)
class Device:
    """What an executor's attribute `device` tells of the hardware. The host refuses circuits that do not fit it.

    `targets` names the gate sets that are taken, the preferred one first: `cz`, `cnot`, `iswap`, `pcz`. Give one list
    of edges: `logical_edges` where a two-qubit gate works in both directions, `directed_edges` (control, target) where
    it does not, neither where every pair is connected.
    """

    num_qubits: int
    targets: Sequence[str]
    logical_edges: Sequence[tuple[int, int]] | None = None
    directed_edges: Sequence[tuple[int, int]] | None = None
    max_shots: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a factory is told of the host. Credentials are not part of it."""

    # Absolute path of device.yaml; empty without one. `read_device_config` reads it.
    device_config: str = ""
    executor_factory: str = ""
    qpu_id: str = ""
    qpu_display_name: str = ""
    native_gate_set: str = "cz"
    num_qubits: int = 5


class JobExecutor(Protocol):
    """The one method that every executor has. It may also be a plain function."""

    async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult: ...


# The device config as the host has read it: its path and its values.
_read_by_host: tuple[str, Mapping[str, Any]] | None = None
# What the host takes out of errors and log lines.
_secrets: set[str] = set()
# Shorter ones would mask parts of ordinary words.
_SHORTEST_SECRET = 4


def read_device_config(settings: Settings) -> Mapping[str, Any]:
    """The values of device.yaml; none without one. Outside of coda-host PyYAML must be installed.

    Raises:
        ConfigError: if the file can't be read, or is not a mapping.
    """
    path = settings.device_config
    if not path:
        return {}
    if _read_by_host and _read_by_host[0] == str(path):
        return _read_by_host[1]
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]

        values = yaml.safe_load(Path(path).read_text())
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} can't be read without PyYAML; install it: pip install pyyaml") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} holds no keys with values")
    return values


def mask_secret(secret: str) -> None:
    """Keeps a password or token out of the errors and log lines that the host passes on."""
    if len(secret) >= _SHORTEST_SECRET:
        _secrets.add(secret)


def _masked(text: str) -> str:
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
