"""What a backend is: its gates and pairs of qubits, and the device that the host is told of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from qiskit.transpiler import Target

from coda_executor import Device
from coda_qiskit.config import TARGETS, Config

# Qiskit's name of the two-qubit gate of each target.
NATIVE_GATE = {"cz": "cz", "cnot": "cx", "iswap": "iswap", "pcz": "cp"}
# Gates that act alike in both directions, so that an edge has none.
SYMMETRIC = {"cz", "cp", "iswap", "rzz", "rxx", "ryy", "swap", "xx_plus_yy"}



class Gates:
    """The gates of a backend's first qubits.

    Compiling against these alone takes as long for 65,535 qubits as for 50, and circuits stay as narrow as they come.
    """

    def __init__(self, target: Target, num_qubits: int) -> None:
        self.whole = target
        self.by_name: dict[str, tuple[Any, Mapping[Any, Any] | None]] = {}
        for name in target.operation_names:
            operation = target.operation_from_name(name)
            # Control flow and instructions of any width are classes; circuits have neither.
            if inspect.isclass(operation) or operation.num_qubits not in (1, 2):
                continue
            places = target[name]
            if places is None or None in places:
                self.by_name[name] = (operation, None)
            else:
                kept = {qubits: value for qubits, value in places.items() if max(qubits) < num_qubits}
                self.by_name[name] = (operation, kept)
        self.targets: dict[int, Target] = {}

    def pairs(self) -> set[tuple[int, int]] | None:
        """The pairs of qubits with a two-qubit gate; None where every pair has one."""
        found: set[tuple[int, int]] = set()
        for operation, places in self.two_qubit_gates().values():
            if places is None:
                return None
            found.update(places)
        return found

    def two_qubit_gates(self) -> dict[str, tuple[Any, Mapping[Any, Any] | None]]:
        return {name: gate for name, gate in self.by_name.items() if gate[0].num_qubits == 2}

    def has(self, name: str, qubits: tuple[int, ...]) -> bool:
        if name not in self.by_name:
            return False
        places = self.by_name[name][1]
        return places is None or qubits in places

    def target(self, num_qubits: int) -> Target:
        """A Qiskit target of this many qubits."""
        if type(self.whole) is not Target:
            # A provider's own class, which its own stages of the compiler rely on.
            return self.whole
        if num_qubits not in self.targets:
            target = Target(num_qubits=num_qubits, dt=self.whole.dt)
            for name, (operation, places) in self.by_name.items():
                if places is not None:
                    places = {qubits: value for qubits, value in places.items() if max(qubits) < num_qubits}
                    if not places:
                        continue
                target.add_instruction(operation, places, name=name)
            self.targets[num_qubits] = target
        return self.targets[num_qubits]


def most_shots(backend: Any) -> int | None:
    """The shots that the backend takes at most, from the places where providers say so."""
    places: list[Callable[[], Any]] = [
        lambda: backend.max_shots,
        lambda: backend.MAX_SHOTS,
        lambda: backend.options.validator["shots"][1],
        lambda: backend.options.max_shots,
        lambda: backend.configuration().max_shots,
    ]
    for place in places:
        try:
            shots = place()
            if type(shots) is int and shots > 0:
                return shots
        except (AttributeError, KeyError, TypeError, IndexError):
            continue
    return None


def fitting_targets(gates: Gates | None, preferred: str | None) -> list[str]:
    """The gate sets whose two-qubit gate the backend has, the preferred one first; all for a simulator.

    Where it has another one, such as ecr or rzz, the gate of any set is translated; cnot and cz cost one of them.
    """
    names = set(gates.two_qubit_gates()) if gates else set(NATIVE_GATE.values())
    fitting = [target for target in TARGETS if NATIVE_GATE[target] in names]
    is_simulator = len(fitting) > 1 and (gates is None or gates.pairs() is None)
    if is_simulator:
        fitting = list(TARGETS)
    elif not fitting:
        fitting = ["cnot", "cz"] if names else ["cz"]
    return ([preferred] if preferred else []) + [target for target in fitting if target != preferred]


def describe_device(backend: Any, gates: Gates | None, name: str, config: Config, num_qubits: int) -> Device:
    logical, directed = None, None
    pairs = gates.pairs() if gates else None
    if gates and pairs is not None:
        is_symmetric = SYMMETRIC.issuperset(gates.two_qubit_gates()) or all((b, a) in pairs for a, b in pairs)
        if is_symmetric:
            logical = sorted({(min(pair), max(pair)) for pair in pairs})
        else:
            directed = sorted(pairs)
    return Device(
        num_qubits=num_qubits,
        targets=fitting_targets(gates, config.target),
        logical_edges=logical,
        directed_edges=directed,
        max_shots=None if backend is None else most_shots(backend),
        name=name,
    )
