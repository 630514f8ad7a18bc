"""Qiskit backends and providers of the tests: each has one property that real ones have, most of them an unpleasant one."""

import os
import threading
from types import SimpleNamespace

from qiskit.circuit import Measure, Parameter
from qiskit.circuit.library import CZGate, RXGate, RYGate, RZGate
from qiskit.exceptions import QiskitError
from qiskit.providers import BackendV2, Options
from qiskit.providers.exceptions import JobTimeoutError, QiskitBackendNotFoundError
from qiskit.transpiler import Target
from qiskit_aer import AerSimulator
from qiskit_aer.noise import NoiseModel, ReadoutError, depolarizing_error


def note(line):
    """Appends to the file that the test reads."""
    with open(os.environ["LAB_NOTES"], "a") as file:
        file.write(f"{line}\n")


def noisy():
    """A simulator with a noise model of its own."""
    model = NoiseModel()
    model.add_all_qubit_quantum_error(depolarizing_error(0.002, 1), ["rx", "ry", "rz"])
    model.add_all_qubit_quantum_error(depolarizing_error(0.01, 2), ["cz", "cx"])
    model.add_all_qubit_readout_error(ReadoutError([[0.99, 0.01], [0.02, 0.98]]))
    return AerSimulator(noise_model=model, seed_simulator=7)


class Job:
    """A job whose counts are there already."""

    def __init__(self, counts, wait=None):
        self.counts = counts
        self.wait = wait
        self.stopped = threading.Event()

    def job_id(self):
        return "job-4711"

    def result(self):
        if self.wait:
            self.stopped.wait(self.wait)
        if isinstance(self.counts, Exception):
            raise self.counts
        return SimpleNamespace(success=True, get_counts=lambda index: self.counts[index])

    def cancel(self):
        note("cancel")
        self.stopped.set()


class Recording(AerSimulator):
    """Notes what is run, and how many circuits at once."""

    def run(self, circuits, shots=None, **options):
        batch = circuits if isinstance(circuits, list) else [circuits]
        gates = ["+".join(sorted(circuit.count_ops())) for circuit in batch]
        widths = {circuit.num_clbits for circuit in batch}
        note(f"run {len(batch)} of {shots} shots, {','.join(gates)}, bits {widths}, options {sorted(options)}")
        return super().run(circuits, shots=shots, **options)


class Line(BackendV2):
    """As many qubits as wanted in a line, each coupled with the next. Every outcome is the last qubit turned."""

    def __init__(self, num_qubits=3, blanks=False, wait=None, error=None):
        super().__init__(name="line")
        angle, places = Parameter("t"), {(n,): None for n in range(num_qubits)}
        self.made = Target(num_qubits=num_qubits)
        for gate in (RXGate(angle), RYGate(angle), RZGate(angle)):
            self.made.add_instruction(gate, dict(places))
        self.made.add_instruction(CZGate(), {(n, n + 1): None for n in range(num_qubits - 1)})
        self.made.add_instruction(Measure(), places)
        self.blanks, self.wait, self.error = blanks, wait, error

    @property
    def target(self):
        return self.made

    @property
    def max_circuits(self):
        return None

    @classmethod
    def _default_options(cls):
        options = Options(shots=1000)
        options.set_validator("shots", (1, 8192))
        return options

    def run(self, circuits, shots, **options):
        batch = circuits if isinstance(circuits, list) else [circuits]
        note(f"run {len(batch)}")
        keys = ["1" + "0" * (circuit.num_clbits - 1) for circuit in batch]
        if self.blanks:
            keys = [" ".join(key) for key in keys]
        return Job(self.error or [{key: shots} for key in keys], self.wait)


class Uncancellable(Line):
    """Its jobs can't be cancelled: they take their time."""

    def run(self, circuits, shots, **options):
        job = super().run(circuits, shots, **options)

        def cancel():
            raise NotImplementedError("this backend has no cancel")

        job.cancel = cancel
        return job


def queue_timeout():
    return Line(error=JobTimeoutError("timed out after 600 s in state QUEUED"))


class Answers(Line):
    """Answers in a form that few backends have, which `form` names."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def run(self, circuits, shots, **options):
        key = "100"
        counts = {
            "empty": {}, "zeros": {key: 0}, "floats": {key: float(shots)}, "half": {key: 0.5}, "hex": {"0x4": shots},
            "list": [{key: shots}], "none": None,
        }.get(self.form)

        def no_counts(index):
            raise QiskitError(f'No counts for experiment "{index}"')

        result = SimpleNamespace(success=True, get_counts=lambda index: counts)
        if self.form in ("memory", "nothing"):
            result.get_counts = no_counts
        if self.form == "memory":
            result.get_memory = lambda index: [key] * (shots - 1) + ["000"]
        if self.form == "no_result":
            result = None
        job = Job(None)
        job.result = lambda: result
        return job


class Sizeless:
    """Does not tell its size."""

    version, options = 2, Options()

    def __init__(self):
        angle = Parameter("t")
        self.target = Target()
        for gate in (RXGate(angle), RYGate(angle), RZGate(angle), CZGate(), Measure()):
            self.target.add_instruction(gate)

    def run(self, circuits, shots, **options):
        return Job([{"1" + "0" * (circuits.num_clbits - 1): shots}])


class Targetless:
    """What some call a backend."""

    version, target, num_qubits = 2, None, 3


class Runless(Line):
    """Only primitives run circuits on it."""

    run = None


class AuthenticationError(Exception):
    """What providers raise for a bad token."""


class Reversed(AerSimulator):
    """Keys in the order of the register, which no Qiskit backend should return."""

    def run(self, circuits, shots=None, **options):
        job = super().run(circuits, shots=shots, **options)
        result = job.result()
        get_counts = result.get_counts
        result.get_counts = lambda index: {key[::-1]: count for key, count in get_counts(index).items()}
        job.result = lambda: result
        return job


class Provider:
    """Finds backends by name, with a token that has to be right."""

    def __init__(self, url, token):
        if token != "s3cret-token":
            raise AuthenticationError(f"401 for {url} with the token {token}")
        note(f"provider {url}")

    def backends(self):
        return [SimpleNamespace(name="line-3"), SimpleNamespace(name="line-5")]

    def get_backend(self, name):
        if name not in ("line-3", "line-5"):
            raise QiskitBackendNotFoundError("No backend matches the criteria.")
        return Line(int(name[-1]))
