"""From NativeGateIR to circuits that a backend runs, and from its counts to ours."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from qiskit.circuit import ClassicalRegister, QuantumCircuit
from qiskit.transpiler import generate_preset_pass_manager

from coda_executor import ExecutorError, NativeGateIR, Unsupported
from coda_qiskit.device import SYMMETRIC, Gates

# The register that every circuit is measured into.
REGISTER = "c"
NANOSECOND = 1e-9



class Compiler:
    """From NativeGateIR to circuits that the backend runs."""

    def __init__(self, backend: Any, gates: Gates | None, name: str, optimization_level: int) -> None:
        self.backend = backend
        self.gates = gates
        self.name = name
        self.level = optimization_level
        self.pairs = gates.pairs() if gates else None
        self.passes: dict[int, Any] = {}
        self.plugins = {}
        for argument in ("translation", "scheduling"):
            plugin = getattr(backend, f"get_{argument}_stage_plugin", lambda: None)()
            if plugin:
                self.plugins[f"{argument}_method"] = plugin

    def compile(self, ir: NativeGateIR) -> QuantumCircuit:
        """The circuit on the backend's qubits, measured into one register.

        Raises:
            Unsupported: if the backend can't run it.
        """
        circuit = self.circuit(ir)
        if self.is_native(circuit):
            return circuit
        try:
            compiled = self.pass_manager(ir.num_qubits).run(circuit)
        except Exception as error:
            raise Unsupported(f"the backend {self.name} can't run this circuit: {error}") from error
        layout = compiled.layout and compiled.layout.final_index_layout()
        if layout not in (None, list(range(ir.num_qubits))):
            raise ExecutorError(f"the compiler for {self.name} moved the qubits to {layout}, so nothing is run")
        return compiled

    def circuit(self, ir: NativeGateIR) -> QuantumCircuit:
        measured = distinct(ir.measurements)
        circuit = QuantumCircuit(ir.num_qubits)
        circuit.add_register(ClassicalRegister(len(measured), REGISTER))
        for op in ir.gates:
            gate, qubits, params = str(op.gate.value), tuple(op.qubits), op.params
            if len(qubits) == 2:
                self.check_pair(gate, *qubits)
                qubits = self.in_direction(gate, *qubits)
            match gate:
                case "rx" | "ry" | "rz":
                    getattr(circuit, gate)(params[0], *qubits)
                case "virtual_z":
                    circuit.rz(params[0], *qubits)
                case "x90":
                    circuit.rx(math.pi / 2, *qubits)
                case "y_minus_90":
                    circuit.ry(-math.pi / 2, *qubits)
                case "cz" | "iswap":
                    getattr(circuit, gate)(*qubits)
                case "cp":
                    circuit.cp(params[0], *qubits)
                case "cnot":
                    circuit.cx(*qubits)
                case "id":
                    # A backend without delays has no way to wait.
                    if params[0] > 0 and self.gates and self.gates.has("delay", qubits):
                        circuit.delay(params[0] * NANOSECOND, *qubits, unit="s")
                case _:
                    raise Unsupported(f"coda_qiskit does not know the gate {gate!r}")
        circuit.measure(measured, range(len(measured)))
        return circuit

    def check_pair(self, gate: str, a: int, b: int) -> None:
        if self.pairs is not None and (a, b) not in self.pairs and (b, a) not in self.pairs:
            raise Unsupported(
                f"the backend {self.name} has no coupling between the qubits {a} and {b}, which a {gate} of this "
                "circuit needs; circuits are not routed"
            )

    def in_direction(self, gate: str, a: int, b: int) -> tuple[int, int]:
        """The pair as the backend has it, where a gate is the same in both directions: Qiskit does not turn every gate."""
        turned = gate in SYMMETRIC and self.pairs is not None and (a, b) not in self.pairs
        return (b, a) if turned else (a, b)

    def is_native(self, circuit: QuantumCircuit) -> bool:
        """Whether a circuit can be run as it is."""
        if self.gates is None:
            return True
        if self.level > 0 or self.plugins:
            return False
        gates, index = self.gates, {qubit: n for n, qubit in enumerate(circuit.qubits)}
        return all(
            entry.operation.name != "delay" and gates.has(entry.operation.name, tuple(index[q] for q in entry.qubits))
            for entry in circuit.data
        )

    def pass_manager(self, num_qubits: int) -> Any:
        if num_qubits not in self.passes:
            assert self.gates is not None
            self.passes[num_qubits] = generate_preset_pass_manager(
                optimization_level=self.level,
                target=self.gates.target(num_qubits),
                initial_layout=list(range(num_qubits)),
                layout_method="trivial",
                routing_method="none",
                **self.plugins,
            )
        return self.passes[num_qubits]


def distinct(qubits: Iterable[int]) -> list[int]:
    """In the order of their first appearance. A backend may refuse to measure a qubit twice, so it isn't asked to."""
    return list(dict.fromkeys(qubits))


def keys_of(ir: NativeGateIR, raw: Mapping[str, Any]) -> dict[str, int]:
    """Counts by keys whose character i is the outcome of measurements[i].

    Qiskit has the first bit of a register at the right end of a key, and a blank between registers.
    """
    if not isinstance(raw, Mapping):
        raise ExecutorError(f"the backend returned {type(raw).__name__} as counts, expected a mapping")
    place = {qubit: n for n, qubit in enumerate(distinct(ir.measurements))}
    counts: dict[str, int] = {}
    for raw_key, count in raw.items():
        bits = str(raw_key).replace(" ", "")[::-1]
        if len(bits) != len(place) or not set(bits) <= {"0", "1"}:
            raise ExecutorError(f"the backend returned the key {raw_key!r}, expected {len(place)} bits")
        key = "".join(bits[place[qubit]] for qubit in ir.measurements)
        counts[key] = counts.get(key, 0) + whole(count, raw_key)
    return counts


def whole(count: Any, key: object) -> int:
    """A count, which is a float in the results of some providers."""
    try:
        return operator.index(count)
    except TypeError:
        if isinstance(count, float) and count.is_integer():
            return int(count)
        raise ExecutorError(f"the backend returned the count {count!r} for the key {key!r}, expected a whole number") from None
