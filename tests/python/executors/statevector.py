"""An exact simulator: what the shape of a small vendor's package looks like, and what `plugin check` can judge."""

import asyncio
import math
import re
import time
from pathlib import Path

import numpy as np

from coda_node.server.executor import ExecutionResult


def one_qubit(gate, params):
    angle = params[0] if params else 0.0
    c, s = math.cos(angle / 2), math.sin(angle / 2)
    match gate:
        case "rx":
            return np.array([[c, -1j * s], [-1j * s, c]])
        case "ry":
            return np.array([[c, -s], [s, c]])
        case "rz" | "virtual_z":
            return np.diag([np.exp(-0.5j * angle), np.exp(0.5j * angle)])
        case "x90":
            return one_qubit("rx", [math.pi / 2])
        case "y_minus_90":
            return one_qubit("ry", [-math.pi / 2])
        case "id":
            return np.eye(2)
    raise NotImplementedError(f"no gate {gate}")


def two_qubit(gate, params):
    match gate:
        case "cz":
            return np.diag([1, 1, 1, -1]).astype(complex)
        case "cp":
            return np.diag([1, 1, 1, np.exp(1j * params[0])])
        case "iswap":
            return np.array([[1, 0, 0, 0], [0, 0, 1j, 0], [0, 1j, 0, 0], [0, 0, 0, 1]])
        case "cnot":
            return np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=complex)
    raise NotImplementedError(f"no gate {gate}")


class Statevector:
    def __init__(self, qubits, seed, delay):
        self.qubits = qubits
        self.random = np.random.default_rng(seed)
        self.delay = delay
        self.stop = asyncio.Event()

    async def run(self, ir, shots):
        if ir.num_qubits > self.qubits:
            raise ValueError(f"{ir.num_qubits} qubits are asked for, the simulator has {self.qubits}")
        start = time.perf_counter()
        if self.delay:
            await asyncio.sleep(self.delay)
        counts = await asyncio.to_thread(self.sample, ir, shots)
        elapsed = 1e3 * (time.perf_counter() - start)
        return ExecutionResult(counts=counts, execution_time_ms=elapsed, shots_completed=shots)

    async def batch_run(self, jobs):
        return [await self.run(ir, shots) for ir, shots in jobs]

    def sample(self, ir, shots):
        used = sorted({q for op in ir.gates for q in op.qubits} | set(ir.measurements))
        place = {q: n for n, q in enumerate(used)}
        state = np.zeros([2] * len(used), dtype=complex)
        state[(0,) * len(used)] = 1
        for op in ir.gates:
            axes = [place[q] for q in op.qubits]
            made = one_qubit if len(axes) == 1 else two_qubit
            matrix = made(op.gate.value, op.params).reshape([2] * 2 * len(axes))
            moved = np.tensordot(matrix, state, axes=(range(len(axes), 2 * len(axes)), axes))
            state = np.moveaxis(moved, range(len(axes)), axes)
        weights = np.abs(state.reshape(-1)) ** 2
        drawn = self.random.multinomial(shots, weights / weights.sum())
        counts = {}
        for index in np.nonzero(drawn)[0]:
            bits = format(index, f"0{len(used)}b") if used else ""
            key = "".join(bits[place[q]] for q in ir.measurements)
            counts[key] = counts.get(key, 0) + int(drawn[index])
        return counts


def number(text, key, default):
    found = re.search(rf"^{key}\s*:\s*(\S+)", text, re.MULTILINE)
    return float(found.group(1)) if found else default


def create_executor(settings):
    text = Path(settings.device_config).read_text() if settings.device_config else ""
    seed = number(text, "seed", None)
    qubits, delay = int(number(text, "num_qubits", 8)), number(text, "delay", 0.0)
    return Statevector(qubits, None if seed is None else int(seed), delay)


class Reversed(Statevector):
    """Keys in the reverse order, as Qiskit has them."""

    def sample(self, ir, shots):
        return {key[::-1]: count for key, count in super().sample(ir, shots).items()}


def backwards(settings):
    return Reversed(4, 1, 0.0)


class Single:
    """Without batches: the Python node's own batches need an older client of Redis."""

    def __init__(self, settings):
        self.inner = create_executor(settings)

    async def run(self, ir, shots):
        return await self.inner.run(ir, shots)


def single(settings):
    return Single(settings)
