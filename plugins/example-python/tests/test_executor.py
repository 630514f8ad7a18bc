"""Tests of the executor without a host: `python -m pytest`."""

import asyncio
import math

import pytest
from coda_executor import GateOp, NativeGate, NativeGateIR, Settings, Unsupported

from acme_example.executor_factory import create_executor


def run(circuit: NativeGateIR, shots: int = 100) -> dict[str, int]:
    executor = create_executor(Settings())
    return dict(asyncio.run(executor.run(circuit, shots)).counts)


def test_character_i_of_a_key_is_the_outcome_of_measurement_i() -> None:
    turned = [GateOp(NativeGate.RX, [2], [math.pi])]
    assert run(NativeGateIR("cz", 3, turned, [2, 0])) == {"10": 100}
    assert run(NativeGateIR("cz", 3, turned, [0, 2, 2])) == {"011": 100}
    assert run(NativeGateIR("cz", 3, turned, [])) == {"": 100}


def test_a_bell_state_has_equal_outcomes() -> None:
    half = math.pi / 2
    gates = [
        GateOp(NativeGate.RY, [0], [half]),
        GateOp(NativeGate.RY, [1], [-half]),
        GateOp(NativeGate.CZ, [0, 1]),
        GateOp(NativeGate.RY, [1], [half]),
    ]
    counts = run(NativeGateIR("cz", 2, gates, [0, 1]), shots=1000)
    assert set(counts) == {"00", "11"}
    assert 350 < counts["00"] < 650


def test_circuits_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Unsupported):
        run(NativeGateIR("cnot", 2, [], [0]))
    with pytest.raises(Unsupported):
        run(NativeGateIR("cz", 6, [], [0]))
