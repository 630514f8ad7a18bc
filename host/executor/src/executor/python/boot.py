# The first text that the interpreter runs, whatever its version: it reads the bridge from the host and starts it.
# The bridge gets a separate module, so that __main__ stays empty, as the helpers of multiprocessing expect it.
import socket
import struct
import sys

DESCRIPTORS = [int(number) for number in sys.argv[1:4]]
OLDEST = (3, 11)


def read(count):
    data = b""
    while len(data) < count:
        part = slot.recv(min(count - len(data), 1 << 20))
        if not part:
            sys.exit(0)
        data += part
    return data


def frame():
    return read(struct.unpack("<I", read(4))[0])


slot = socket.fromfd(DESCRIPTORS[2], socket.AF_UNIX, socket.SOCK_STREAM)
source = frame()[9:]
if sys.version_info < OLDEST:
    frame()
    text = (
        '{"PythonRefused":{"what":"Python %d.%d is too old, coda-node needs %d.%d",'
        '"hint":"set CODA_EXECUTOR_PYTHON to a newer interpreter"}}'
    ) % (sys.version_info[:2] + OLDEST)
    data = text.encode("utf-8")
    slot.sendall(struct.pack("<IBQ", len(data) + 9, 7, len(data)) + data)
    sys.exit(0)
slot.close()
if sys.path and sys.path[0] == "":
    del sys.path[0]
del sys.argv[1:]

import types

bridge = types.ModuleType("coda_host_bridge")
sys.modules["coda_host_bridge"] = bridge
exec(compile(source, "<coda-host bridge>", "exec"), bridge.__dict__)
bridge.main(DESCRIPTORS)
