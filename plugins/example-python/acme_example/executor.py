"""The executor: from circuits to what the instrument plays, and from its outcomes to counts."""

from __future__ import annotations

import time

from coda_executor import Device, ExecutionResult, NativeGateIR, Unsupported

from acme_example.instrument import Instrument


class AcmeExecutor:
    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument
        # The host reports it, and refuses circuits that do not fit before they come here.
        self.device = Device(
            num_qubits=5,
            targets=["cz"],
            logical_edges=[(0, 1), (1, 2), (2, 3), (3, 4)],
            max_shots=100_000,
            name="acme-example",
        )

    async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult:
        """Runs one circuit. An exception's text is sent to whoever sent the job.

        The host calls it for one job at a time. Await while the hardware works: a cancel then ends the run at once. For a
        control stack that blocks, use `await asyncio.to_thread(...)`, and stop it in `cancel_current_job`.
        """
        self.check(ir)
        start = time.perf_counter()
        pulses = [(op.gate.value, tuple(op.qubits), tuple(op.params)) for op in ir.gates]
        outcomes = await self.instrument.play(pulses, self.device.num_qubits, shots)
        # An outcome has one character per qubit of the device; a key has one per measurement, in that order.
        counts: dict[str, int] = {}
        for outcome, count in outcomes.items():
            key = "".join(outcome[qubit] for qubit in ir.measurements)
            counts[key] = counts.get(key, 0) + count
        return ExecutionResult(counts, 1e3 * (time.perf_counter() - start), shots)

    async def cancel_current_job(self) -> None:
        """Called when the job that runs is cancelled; the host then ends `run`, wherever it awaits."""
        self.instrument.stop()

    def check(self, ir: NativeGateIR) -> None:
        if ir.target not in self.device.targets:
            raise Unsupported(f"this device takes circuits of {', '.join(self.device.targets)}, not of {ir.target}")
        if ir.num_qubits > self.device.num_qubits:
            raise Unsupported(f"this device has {self.device.num_qubits} qubits, and the circuit {ir.num_qubits}")
