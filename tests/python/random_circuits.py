"""Random circuits in OpenQASM 3, each with what Qiskit says about it: the state, Bloch vectors, entropies and
expectation values. One JSON document a line. Arguments: the seed, and how many circuits.

The text and the operators come from the same choices, but by separate rules: loops, slices, broadcast and modifiers are
Python's ranges and products of matrices here. Matrices of gates are Qiskit's.
"""

import json
import math
import random
import sys

import numpy as np
import scipy.linalg
from qiskit.circuit import library as gates
from qiskit.quantum_info import Operator, Pauli, Statevector, entropy, partial_trace

NAMES = {"pi": math.pi, "tau": math.tau, "sin": math.sin, "cos": math.cos, "sqrt": math.sqrt}

# Rotations have the power of their angle; of others it is the principal one.
ROTATIONS = {
    "rx": gates.RXGate, "ry": gates.RYGate, "rz": gates.RZGate, "p": gates.PhaseGate, "u1": gates.PhaseGate,
    "rxx": gates.RXXGate, "ryy": gates.RYYGate, "rzz": gates.RZZGate,
}
# Rotations with a control, as the controlled rotation.
CONTROLLED_ROTATIONS = {"crx": "rx", "cry": "ry", "crz": "rz", "cp": "p", "cu1": "p"}
FIXED = {
    "x": gates.XGate, "y": gates.YGate, "z": gates.ZGate, "h": gates.HGate, "s": gates.SGate, "sdg": gates.SdgGate,
    "t": gates.TGate, "tdg": gates.TdgGate, "sx": gates.SXGate, "sxdg": gates.SXdgGate, "id": gates.IGate,
    "cx": gates.CXGate, "cy": gates.CYGate, "cz": gates.CZGate, "ch": gates.CHGate, "csx": gates.CSXGate,
    "swap": gates.SwapGate, "ccx": gates.CCXGate, "cswap": gates.CSwapGate, "teleport": gates.SwapGate,
}
# Their fractional powers are not known to the parser.
WHOLE_ONLY = {"iswap": gates.iSwapGate, "dcx": gates.DCXGate, "rccx": gates.RCCXGate}
PARAMETERS = {
    "u": (3, gates.UGate), "U": (3, gates.UGate), "u3": (3, gates.U3Gate), "u2": (2, gates.U2Gate),
    "cu3": (3, gates.CU3Gate), "cu": (4, gates.CUGate),
}


def principal_power(matrix, exponent):
    """By the Schur form, which is diagonal for a unitary; an eigenvalue of -1 has the argument pi."""
    diagonal, vectors = scipy.linalg.schur(matrix, output="complex")
    angles = np.angle(np.diag(diagonal))
    angles = np.where(angles < -math.pi + 1e-8, math.pi, angles)
    return vectors @ np.diag(np.exp(1j * exponent * angles)) @ vectors.conj().T


def controlled(matrix, value=1):
    """The control is the first, least significant qubit."""
    on, off = np.zeros((2, 2)), np.zeros((2, 2))
    on[value, value] = off[1 - value, 1 - value] = 1
    return np.kron(matrix, on) + np.kron(np.eye(len(matrix)), off)


class Gate:
    """A text and its matrix; `power` gives the matrix of a fractional power, or is None."""

    def __init__(self, text, matrix, power=None):
        self.text, self.matrix, self.power = text, np.asarray(matrix, dtype=complex), power
        self.qubits = int(math.log2(len(self.matrix)))

    def principal(self):
        self.power = lambda exponent: principal_power(self.matrix, exponent)
        return self


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        pick = self.random
        self.inputs = {"theta": round(pick.uniform(-3, 3), 3), "k": pick.randint(1, 3)}
        self.sizes = [pick.randint(2, 3), pick.randint(1, 2)]
        self.count = sum(self.sizes)
        self.registers = {"q": list(range(self.sizes[0])), "r": list(range(self.sizes[0], self.count))}
        self.definitions = {}
        self.lines = []
        self.state = Statevector.from_int(0, 2**self.count)

    def expression(self, names):
        pick = self.random
        number = pick.choice([f"{pick.uniform(-4, 4):.3f}", "pi/3", "-tau/8", "2*pi/5", "sqrt(2)", "1.5e-1", "2**-1"])
        name = pick.choice(sorted(names)) if names else "1"
        return pick.choice([
            number, number, name, f"{name}/2", f"-{name}+{number}", f"sin({name})*{number}", f"({name}-1)*({number})",
        ])

    def value(self, text, names):
        return eval(text, {"__builtins__": {}}, {**NAMES, **names})

    def base(self, most, names, one_qubit=False):
        """A gate that is built in, on at most so many qubits."""
        pick = self.random
        while True:
            gate = self.any_base(names)
            if gate.qubits <= most and not (one_qubit and gate.qubits > 1):
                return gate

    def any_base(self, names):
        pick = self.random
        family = pick.choice("rrffpcw")
        if family in "rc":
            name = pick.choice(sorted(ROTATIONS if family == "r" else CONTROLLED_ROTATIONS))
            text = self.expression(names)
            angle = self.value(text, names)
            if family == "r":
                rotation = ROTATIONS[name]
                return Gate(f"{name}({text})", rotation(angle), lambda k: rotation(k * angle).to_matrix())
            rotation = ROTATIONS[CONTROLLED_ROTATIONS[name]]
            power = lambda k: controlled(rotation(k * angle).to_matrix())
            return Gate(f"{name}({text})", power(1), power)
        if family == "f":
            name = pick.choice(sorted(FIXED))
            return Gate(name, FIXED[name]()).principal()
        if family == "w":
            name = pick.choice(sorted(WHOLE_ONLY))
            return Gate(name, WHOLE_ONLY[name]())
        name = pick.choice(sorted(PARAMETERS))
        count, kind = PARAMETERS[name]
        texts = [self.expression(names) for _ in range(count)]
        values = [self.value(text, names) for text in texts]
        return Gate(f"{name}({', '.join(texts)})", kind(*values)).principal()

    def call(self, most, names):
        """A call of a definition, if there is one that fits."""
        fitting = [name for name, (count, _, _) in sorted(self.definitions.items()) if count <= most]
        if not fitting:
            return self.base(most, names)
        name = self.random.choice(fitting)
        count, parameters, build = self.definitions[name]
        texts = [self.expression(names) for _ in range(parameters)]
        matrix = build([self.value(text, names) for text in texts])
        gate = Gate(f"{name}({', '.join(texts)})" if texts else name, matrix)
        return gate.principal() if count == 1 else gate

    def phase(self, names):
        text = self.expression(names)
        angle = self.value(text, names)
        return Gate(f"gphase({text})", [[np.exp(1j * angle)]], lambda k: np.array([[np.exp(1j * k * angle)]]))

    def modified(self, most, names):
        """A gate with modifiers, on at most so many qubits and at least one."""
        pick = self.random
        inner = pick.choice([self.base, self.base, self.call])(max(1, most - pick.randint(0, 2)), names)
        if most > 0 and pick.random() < 0.1:
            inner = self.phase(names)
        for _ in range(pick.choice([0, 0, 1, 1, 2, 3])):
            choice = pick.choice(["ctrl", "negctrl", "inv", "pow", "fraction"])
            if choice in ("ctrl", "negctrl") and inner.qubits < most:
                inner = self.control(inner, choice)
            elif choice == "inv":
                power = inner.power and (lambda k, power=inner.power: power(-k))
                text, matrix, is_rotation = inner.text, inner.matrix.conj().T, inner.text.split("(")[0] in ROTATIONS
                inner = Gate(f"inv @ {text}", matrix, power if is_rotation or "gphase" in text else None)
                if not is_rotation and "gphase" not in text and power and inner.qubits == 1:
                    inner.principal()
            elif choice == "pow":
                times = pick.randint(-3, 3)
                text = pick.choice([str(times), f"2*{times}-{times}"])
                inner = Gate(f"pow({text}) @ {inner.text}", np.linalg.matrix_power(inner.matrix, times))
            elif choice == "fraction" and inner.power:
                exponent = pick.choice([0.5, 0.25, -0.5, 1.5, 0.3, -1.7])
                text = pick.choice([str(exponent), f"{exponent}*2/2"])
                inner = Gate(f"pow({text}) @ {inner.text}", inner.power(exponent))
        return inner if inner.qubits > 0 else self.control(inner, "ctrl")

    def control(self, inner, kind):
        value = 1 if kind == "ctrl" else 0
        power = inner.power and (lambda k, power=inner.power: controlled(power(k), value))
        return Gate(f"{kind} @ {inner.text}", controlled(inner.matrix, value), power)

    def define(self, name):
        """A gate of up to three qubits, whose body may call earlier ones, has phases and loops."""
        pick = self.random
        count, parameters = pick.choice([1, 1, 2, 3]), pick.randint(0, 2)
        names = {f"a{n}": 0.37 + n for n in range(parameters)}
        body = []
        for _ in range(pick.randint(1, 3)):
            kind = pick.random()
            state = pick.getstate()
            loop = pick.random() < 0.2
            qubits = pick.sample(range(count), count)
            body.append((kind, state, loop, qubits))
        earlier = dict(self.definitions)

        def statements(values):
            """Each statement of the body with these values of the parameters: its text and matrix."""
            for kind, state, loop, qubits in body:
                outer, saved = pick.getstate(), self.definitions
                self.definitions = earlier
                texts = []
                for i in [0, 1] if loop else [0]:
                    pick.setstate(state)
                    scope = {**values, "i": i} if loop else values
                    gate = self.phase(scope) if kind < 0.25 else self.modified(count, scope)
                    texts.append((gate, qubits[: gate.qubits]))
                self.definitions = saved
                pick.setstate(outer)
                operands = ", ".join(f"t{n}" for n in texts[0][1])
                text = f"{texts[0][0].text} {operands};"
                yield (f"for int i in [0:1] {{ {text} }}" if loop else text), texts

        def build(values):
            operator = Operator(np.eye(2**count))
            for _, parts in statements(dict(zip(names, values))):
                for gate, qubits in parts:
                    if qubits:
                        operator = operator.compose(Operator(gate.matrix), qargs=qubits)
                    else:
                        operator = operator * complex(gate.matrix[0, 0])
            return operator.data

        text = " ".join(line for line, _ in statements(names))
        head = f"({', '.join(names)})" if names else ""
        self.lines.append(f"gate {name}{head} {', '.join(f't{n}' for n in range(count))} {{ {text} }}")
        self.definitions[name] = (count, parameters, build)

    def reference(self, qubit):
        """One qubit, by one of its names."""
        name, members = self.random.choice([(n, m) for n, m in self.registers.items() if qubit in m])
        at = members.index(qubit)
        return f"{name}[{self.random.choice([at, at - len(members)])}]"

    def slice(self, name):
        """A part of a register: its text and qubits."""
        pick, members = self.random, self.registers[name]
        size = len(members)
        kind = pick.choice(["whole", "range", "step", "down", "set", "negative"])
        first, last = sorted([pick.randrange(size), pick.randrange(size)])
        if kind == "range":
            return f"{name}[{first}:{last}]", members[first : last + 1]
        if kind == "step":
            return f"{name}[{first}:2:{last}]", members[first : last + 1 : 2]
        if kind == "down":
            return f"{name}[{last}:-1:{first}]", members[first : last + 1][::-1]
        if kind == "set":
            chosen = pick.sample(range(size), pick.randint(1, size))
            return f"{name}[{{{', '.join(map(str, chosen))}}}]", [members[at] for at in chosen]
        if kind == "negative":
            return f"{name}[-{size - first}:-{size - last}]", members[first : last + 1]
        return name, members

    def apply(self, gate, qubits):
        if qubits:
            self.state = self.state.evolve(Operator(gate.matrix), qargs=qubits)

    def statement(self):
        pick, names = self.random, self.inputs
        kind = pick.choice(["gate"] * 6 + ["broadcast", "pair", "loop", "loop", "dialect", "phase", "alias"])
        if kind == "gate":
            gate = self.modified(min(4, self.count), names)
            qubits = pick.sample(range(self.count), gate.qubits)
            self.lines.append(f"{gate.text} {', '.join(map(self.reference, qubits))};")
            self.apply(gate, qubits)
        elif kind == "broadcast":
            gate = self.base(1, names)
            text, qubits = self.slice(pick.choice(sorted(self.registers)))
            self.lines.append(f"{gate.text} {text};")
            for qubit in qubits:
                self.apply(gate, [qubit])
        elif kind == "pair":
            text, qubits = self.slice(pick.choice(sorted(self.registers)))
            others = [q for q in range(self.count) if q not in qubits]
            if others:
                gate = self.control(self.base(1, names, one_qubit=True), pick.choice(["ctrl", "negctrl"]))
                control = pick.choice(others)
                self.lines.append(f"{gate.text} {self.reference(control)}, {text};")
                for qubit in qubits:
                    self.apply(gate, [control, qubit])
        elif kind == "loop":
            name = pick.choice(sorted(self.registers))
            members = self.registers[name]
            size = len(members)
            values, text = pick.choice([
                (range(size), f"[0:{size - 1}]"), (range(size - 1, -1, -1), f"[{size - 1}:-1:0]"),
                (range(0, size, 2), f"[0:2:{size - 1}]"), ([size - 1, 0], f"{{{size - 1}, 0}}"),
                (range(0, min(size, names["k"])), f"[0:{'k-1' if names['k'] <= size else size - 1}]"),
            ])
            state, type_name = pick.getstate(), pick.choice(["int ", "uint ", "int[16] ", ""])
            for value in values:
                pick.setstate(state)
                gate = self.base(1, {**names, "i": value})
                self.apply(gate, [members[value]])
                body = gate.text
                if size > 1:
                    other = self.control(self.base(1, {**names, "i": value}), "ctrl")
                    self.apply(other, [members[(value + 1) % size], members[value]])
                    body += f" {name}[i]; {other.text} {name}[(i+1)%{size}], {name}[i];"
                else:
                    body += f" {name}[i];"
            self.lines.append(f"for {type_name}i in {text} {{ {body} }}")
        elif kind == "dialect":
            qubits = pick.sample(range(self.count), pick.randint(1, self.count))
            operands = ", ".join(map(self.reference, qubits))
            transform = Gate("qft", gates.QFTGate(len(qubits)))
            if len(qubits) > 1 and pick.random() < 0.5:
                base = self.base(1, names)
                text = f"controlled {base.text}"
                if base.text.split("(")[0] in ("u", "U"):
                    text = "ctrl @ " * (len(qubits) - 1) + base.text
                for _ in qubits[1:]:
                    base = self.control(base, "ctrl")
                self.lines.append(f"{text} {operands};")
                self.apply(base, qubits)
            elif len(qubits) == 2 and pick.random() < 0.5:
                self.lines.append(f"bell_pair {operands};")
                self.apply(Gate("h", gates.HGate()), qubits[:1])
                self.apply(Gate("cx", gates.CXGate()), qubits)
            else:
                text = pick.choice(["qft", "iqft", "inv @ qft"])
                if text != "qft":
                    transform = Gate("iqft", transform.matrix.conj().T)
                self.lines.append(f"{text} {operands};")
                self.apply(transform, qubits)
        elif kind == "phase":
            self.lines.append(f"{self.phase(names).text};")
        elif len(self.registers) < 5:
            name = f"alias{len(self.registers)}"
            text, qubits = self.slice(pick.choice(sorted(self.registers)))
            other, more = self.slice(pick.choice(sorted(self.registers)))
            if not set(qubits) & set(more):
                text, qubits = f"{text} ++ {other}", qubits + more
            self.lines.append(f"let {name} = {text};")
            self.registers[name] = qubits

    def circuit(self):
        pick = self.random
        self.lines += ["OPENQASM 3.0;", 'include "stdgates.inc";', "input float theta;", "input int[8] k;"]
        self.lines += [f"qubit[{self.sizes[0]}] q;", f"qubit[{self.sizes[1]}] r;", "reset q;"]
        for n in range(pick.randint(1, 3)):
            self.define(f"own{n}")
        for qubit in range(self.count):
            gate = Gate("u", gates.UGate(0.7 + qubit, 0.2 * qubit, -0.4))
            self.lines.append(f"u({0.7 + qubit}, {0.2 * qubit}, -0.4) {self.reference(qubit)};")
            self.apply(gate, [qubit])
        for _ in range(pick.randint(4, 12)):
            self.statement()
        return "\n".join(self.lines)

    def measures(self):
        """What Qiskit's quantum_info says; its labels have the last qubit first."""
        labels = ["".join(self.random.choice("IXYZ") for _ in range(self.count)) for _ in range(4)]
        rest = lambda qubit: [other for other in range(self.count) if other != qubit]
        reduced = [partial_trace(self.state, rest(qubit)) for qubit in range(self.count)]
        return {
            "bloch_vectors": [[rho.expectation_value(Pauli(p)).real for p in "XYZ"] for rho in reduced],
            "entanglement_entropy": [float(entropy(rho, base=2)) for rho in reduced],
            "observable_expectations": {p: self.state.expectation_value(Pauli(p[::-1])).real for p in labels},
            "probabilities": {key[::-1]: p for key, p in self.state.probabilities_dict().items()},
        }


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for n in range(count):
        generator = Generator(seed + n)
        qasm = generator.circuit()
        state = [[float(a.real), float(a.imag)] for a in generator.state.data]
        document = {"seed": seed + n, "qasm": qasm, "inputs": generator.inputs, "state": state, **generator.measures()}
        print(json.dumps(document))


main()
