"""What stands for the hardware: an exact simulator that takes its time. Replace it by the driver of your control stack."""

from __future__ import annotations

import asyncio
import cmath
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping

Pulse = tuple[str, tuple[int, ...], tuple[float, ...]]


class Instrument:
    def __init__(self, host: str, shot_us: float) -> None:
        self.host = host
        self.shot_us = shot_us

    async def play(self, pulses: Iterable[Pulse], num_qubits: int, shots: int) -> Mapping[str, int]:
        """How often each outcome came; character q of an outcome is qubit q."""
        state = [0j] * 2**num_qubits
        state[0] = 1 + 0j
        for n, (gate, qubits, params) in enumerate(pulses):
            apply(state, gate, qubits, params)
            if n % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(shots * self.shot_us * 1e-6)
        drawn = Counter(random.choices(range(len(state)), [abs(amplitude) ** 2 for amplitude in state], k=shots))
        return {"".join(str(index >> q & 1) for q in range(num_qubits)): count for index, count in drawn.items()}

    def stop(self) -> None:
        """Stops what plays. Here nothing does: `play` awaits, and ends with its task."""


def apply(state: list[complex], gate: str, qubits: tuple[int, ...], params: tuple[float, ...]) -> None:
    """Bit q of an index is qubit q."""
    if gate == "cz":
        both = 1 << qubits[0] | 1 << qubits[1]
        for index in range(len(state)):
            if index & both == both:
                state[index] = -state[index]
        return
    if gate == "id":
        return
    c, s = math.cos(params[0] / 2), math.sin(params[0] / 2)
    matrix = {
        "rx": (c, -1j * s, -1j * s, c),
        "ry": (c, -s, s, c),
        "rz": (cmath.exp(-0.5j * params[0]), 0, 0, cmath.exp(0.5j * params[0])),
    }[gate]
    bit = 1 << qubits[0]
    for low in range(len(state)):
        if not low & bit:
            a, b = state[low], state[low | bit]
            state[low] = matrix[0] * a + matrix[1] * b
            state[low | bit] = matrix[2] * a + matrix[3] * b
