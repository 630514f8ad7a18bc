"""An executor with the host's own module alone: what it needs where coda-node is not installed."""

import asyncio
import logging

from coda_executor import ConfigError, Device, ExecutionResult, NativeGateIR, Settings, mask_secret, read_device_config

log = logging.getLogger("plain")


class Plain:
    def __init__(self, flip: int) -> None:
        self.flip = flip
        self.device = Device(
            num_qubits=3, targets=["cnot", "cz"], directed_edges=[(1, 0), (1, 2)], max_shots=5000, name="Plain 1"
        )

    async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult:
        """Flips of rx(pi), and nothing else."""
        flipped = [0] * ir.num_qubits
        for op in ir.gates:
            if op.gate == "rx" and op.qubits != [self.flip]:
                flipped[op.qubits[0]] ^= 1
            elif op.gate.value == "id":
                await asyncio.sleep(op.params[0] / 1e9)
            elif op.gate == "ry":
                log.error("the login with hunter22 failed")
                raise ConnectionError("the login with hunter22 failed")
        key = "".join(str(flipped[qubit]) for qubit in ir.measurements)
        return ExecutionResult({key: shots}, 1.0, shots)


def create_executor(settings: Settings) -> Plain:
    config = read_device_config(settings)
    mask_secret("hunter22")
    if config.get("flip") == "hunter22":
        raise ConfigError("flip: hunter22 is not a qubit")
    return Plain(config.get("flip", -1))
