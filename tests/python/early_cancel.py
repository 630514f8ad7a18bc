"""Plays the host towards the bridge: an order to cancel that overtakes its job, and one that comes too late.

Arguments: the directory of boot.py and bridge.py. Prints one line for each answer.
"""

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

SOURCE, CHECK, CREATE, RUN, ORDER = 16, 1, 2, 3, 11


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def send(sock, kind, body=b""):
    sock.sendall(struct.pack("<IB", len(body) + 1, kind) + body)


def receive(sock):
    (length,) = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))
    return sock.recv(length, socket.MSG_WAITALL)[1:]


def circuit(mode):
    metadata = {"source_hash": mode, "compiled_at": "now"}
    return json.dumps({"target": "cz", "num_qubits": 1, "gates": [], "measurements": [0], "metadata": metadata})


def run(slot, job, mode):
    send(slot, RUN, text(job) + struct.pack("<I", 5) + text(circuit(mode)))
    body = receive(slot)
    # No error of the whole, no surplus, one answer: 1 is a result, 2 an error with its code.
    kind, code = struct.unpack_from("<HI", body, 18)
    return "result" if kind == 1 else f"error {code}"


def main():
    directory = Path(sys.argv[1])
    pairs = [socket.socketpair() for _ in range(3)]
    theirs = [pair[1] for pair in pairs]
    numbers = [str(sock.fileno()) for sock in theirs]
    boot = (directory / "boot.py").read_text()
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", boot, *numbers], pass_fds=[sock.fileno() for sock in theirs]
    )
    for sock in theirs:
        sock.close()
    control, _, slot = (pair[0] for pair in pairs)
    modules = {path.stem: path.read_text() for path in (directory / "carried").glob("*.py")}
    spec = {
        "factory": "lab:create_executor", "settings": {"node_token": "test"}, "config_path": None, "modules": modules,
        "reverse_bits": False, "thread_wait_sec": 1.0, "log_level": 5, "inspect": False, "config": None,
    }
    send(slot, SOURCE, text((directory / "bridge.py").read_text()))
    send(slot, CHECK, text(json.dumps(spec)))
    assert b"PythonChecked" in receive(slot)
    send(slot, CREATE)
    assert b"PythonCreated" in receive(slot)
    control.sendall(b"\0")

    def cancel(job):
        send(control, ORDER, text(json.dumps({"Cancel": job})))
        # Answered, and read behind the cancel.
        send(control, ORDER, text(json.dumps("Shutdown")))
        receive(control)

    cancel("early")
    print("early:", run(slot, "early", "sleep:600"), flush=True)
    cancel("early")
    print("late:", run(slot, "early", "ok"), flush=True)
    cancel("unknown")
    print("unknown:", run(slot, "other", "ok"), flush=True)
    slot.close()
    print("ended:", child.wait(timeout=20), flush=True)


main()
