"""An executor for every Qiskit backend: `executor_factory: coda_qiskit:create_executor`.

coda-host brings this module into the executor's process; only Qiskit and the vendor's provider are installed. It is an
ordinary executor, and reads as a model for one. device.yaml says what to open, by one of these:

    backend: qiskit_aer:AerSimulator            # module:attribute; a class or function is called with backend_args
    backend_args: {method: statevector}

    provider: acme_provider:AcmeProvider        # called with provider_args; then get_backend(backend_name)
    provider_args: {url: https://qpu.example, token_env: ACME_TOKEN}
    backend_name: acme-20

    primitive: acme_provider:Sampler            # a SamplerV2, for providers that left backend.run;
    primitive_args: {}                          # it is given the backend, when one is named by the keys above

and how to use it:

    run_options: {}                             # passed to backend.run, or to the primitive's run
    optimization_level: 0                       # 0 keeps the gates as they come
    target: cz                                  # the preferred gate set, else what the backend has natively
    num_qubits: 20                              # use the first so many qubits only

Qubit i of a circuit is qubit i of the backend. Circuits are translated to the backend's gates, but never laid out or
routed: the sender has chosen the qubits, and a gate on a pair that is not coupled is refused.
"""

from __future__ import annotations

import logging
import sys

from coda_executor import ConfigError, Settings, read_device_config

try:
    import qiskit  # noqa: F401
except ModuleNotFoundError as error:
    raise ConfigError(
        f"Qiskit is not installed for {sys.executable}; install the vendor's provider, which brings it: "
        f"{sys.executable} -m pip install ..."
    ) from error

from coda_qiskit.circuits import Compiler
from coda_qiskit.config import Config
from coda_qiskit.device import Gates, describe_device
from coda_qiskit.errors import explain
from coda_qiskit.execution import BackendRunner, QiskitExecutor, SamplerRunner
from coda_qiskit.opening import name_of, open_backend, open_primitive

log = logging.getLogger("coda_qiskit")

# The largest circuit that the format allows. Of a larger backend the first qubits are used.
MAX_QUBITS = 50

def create_executor(settings: Settings) -> QiskitExecutor:
    """What the host calls, once."""
    # Dozens of lines for each circuit.
    logging.getLogger("qiskit").setLevel(logging.WARNING)
    config = Config.read(read_device_config(settings))
    what = config.backend_name or config.backend or config.provider or config.primitive or ""
    try:
        backend = open_backend(config)
        primitive = open_primitive(config, backend) if config.primitive else None
    except Exception as error:
        raise explain(error, what) from error
    if backend is None and config.num_qubits is None:
        raise ConfigError("a primitive without a backend does not tell its size; set num_qubits")
    if config.num_qubits is None and not hasattr(backend, "num_qubits"):
        raise ConfigError(f"{what} does not tell its number of qubits; set num_qubits")
    available = getattr(backend, "num_qubits", None)
    num_qubits = min(size for size in (available, config.num_qubits, MAX_QUBITS) if size is not None)
    gates = Gates(backend.target, num_qubits) if backend is not None else None
    name = name_of(backend if backend is not None else primitive)
    if available is not None and available > num_qubits:
        log.info("%s has %d qubits, of which the first %d are used", name, available, num_qubits)
    compiler = Compiler(backend, gates, name, config.optimization_level)
    if primitive is not None:
        runner: BackendRunner | SamplerRunner = SamplerRunner(primitive, config.run_options)
    else:
        runner = BackendRunner(backend, config.run_options)
    return QiskitExecutor(runner, compiler, describe_device(backend, gates, name, config, num_qubits))
