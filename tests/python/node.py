"""A py-libp2p peer and client for the interoperability tests: it reads each document with a single read, as existing
peers do, and prints what happens as lines of JSON.

    node.py peer --bootstrap ADDRESS [--key rsa]     answers prepare, commit, cancel and dispatch; gossips
            [--behaviour defaults|wrong|first]       takes what it does not know for a default; answers wrongly; does
                                                     no more than the first of several fragments
    node.py client --peer ADDRESS [--key rsa]        drives a peer through all of them; listens to its gossip
    node.py speed --peer ADDRESS --seconds N         loops of prepare, commit, cancel and prepare, commit, dispatch
"""

import argparse
import cmath
import json
import math
import sys
import time
import uuid
from datetime import datetime, timezone

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair as ed25519
from libp2p.crypto.rsa import create_new_key_pair as rsa
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from multiaddr import Multiaddr

try:
    from libp2p.tools.anyio_service import background_trio_service
except ImportError:  # before 0.7
    from libp2p.tools.async_service import background_trio_service

NAMESPACE = "quantum-backend"
STEPS = {
    step: f"/qb2/{NAMESPACE}/reservation/{step}/1.0.0" for step in ("prepare", "commit", "cancel")
} | {"dispatch": f"/qb2/{NAMESPACE}/execution/fragment-dispatch/1.0.0"}
TOPICS = [f"{NAMESPACE}.peer-advertisement.v1", f"{NAMESPACE}.peer-heartbeat.v1"]
SERVICES = ["hadamard", "cnot", "measurement_feedforward", "programmable_gate"]
LIMIT = 16_384


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def gossip_of(peer_id, addresses):
    advertisement = {
        "peer_id": peer_id, "trust_tier": "external", "network_addresses": addresses,
        "supported_protocols": list(STEPS.values()), "peer_log_position": 0, "emitted_at": now(),
        "service_summaries": [
            {"service_id": s, "version": "1.0.0", "quantum_capability": s, "benchmark_mode": "sim"} for s in SERVICES
        ],
    }
    heartbeat = {
        "peer_id": peer_id, "health_status": "healthy", "active_reservations": 0, "active_executions": 0,
        "peer_log_position": 0, "emitted_at": now(),
    }
    return advertisement, heartbeat


def matrix(theta, phi, lam):
    """The U gate of OpenQASM 3."""
    c, s = math.cos(theta / 2), math.sin(theta / 2)
    return [[c, -cmath.exp(1j * lam) * s], [cmath.exp(1j * phi) * s, cmath.exp(1j * (phi + lam)) * c]]


def apply_matrix(amplitudes, b, m):
    for i in range(len(amplitudes)):
        if not i & b:
            x, y = amplitudes[i], amplitudes[i | b]
            amplitudes[i], amplitudes[i | b] = m[0][0] * x + m[0][1] * y, m[1][0] * x + m[1][1] * y


def apply(state, fragment, behaviour):
    """The few operations that the tests send. What it does not know, a peer with `defaults` takes for the default of the
    fragment's service, as existing programs do; another one says so."""
    ids, text, service = state["qubit_ids"], fragment["raw_text"], fragment["service_id"]
    bit = lambda q: 1 << ids.index(q)
    amplitudes = [complex(a) for a in state["amplitudes"] or []] or [1] + [0] * (2 ** len(ids) - 1)
    qubits = fragment["qubits"]
    name = text.split(" ")[0]
    if behaviour == "defaults":
        name = {"hadamard": "h", "cnot": "cx", "measurement_feedforward": "measure"}.get(service, service)
    if name == "h":
        apply_matrix(amplitudes, bit(qubits[0]), [[math.sqrt(0.5), math.sqrt(0.5)], [math.sqrt(0.5), -math.sqrt(0.5)]])
    elif name == "cx":
        c, t = bit(qubits[0]), bit(qubits[1])
        for i in range(len(amplitudes)):
            if i & c and not i & t:
                amplitudes[i], amplitudes[i | t] = amplitudes[i | t], amplitudes[i]
    elif name == "measure":
        state["measured_qubits"] += [q for q in qubits if q not in state["measured_qubits"]]
    elif behaviour == "defaults":
        if service == "programmable_gate":
            apply_matrix(amplitudes, bit(qubits[0]), matrix(0.12, 0.34, 0.56))
    else:
        raise ValueError(f"this peer does not know `{text}`")
    if behaviour == "wrong":
        amplitudes.reverse()
    state["amplitudes"] = [str(complex(a)) for a in amplitudes]


class Peer:
    def __init__(self, peer_id, behaviour):
        self.peer_id = peer_id
        self.behaviour = behaviour
        self.committed = set()

    def answer(self, step, request):
        rid = request["reservation_id"]
        if step == "prepare":
            return {"reservation_id": rid, "accepting_peer_id": self.peer_id, "transition": "accepted", "reason": None,
                    "replied_at": now()}
        if step in ("commit", "cancel"):
            (self.committed.add if step == "commit" else self.committed.discard)(rid)
            return {"reservation_id": rid, "transition": "committed" if step == "commit" else "cancelled",
                    "replied_at": now()}
        answer = {"execution_id": request["execution_id"], "fragment_id": request["fragment_id"],
                  "executing_peer_id": self.peer_id, "transition": "failed", "output_payload": {}, "latency_ms": None,
                  "fidelity_score": None, "error_detail": None, "artifact_refs": [], "completed_at": now()}
        if rid not in self.committed:
            return answer | {"error_detail": "reservation not committed on target peer"}
        self.committed.discard(rid)
        payload = request["input_payload"]
        try:
            state = payload["state"]
            for fragment in payload["fragments"][: 1 if self.behaviour == "first" else None]:
                apply(state, fragment, self.behaviour)
        except ValueError as error:
            return answer | {"error_detail": str(error)}
        state["previous_peer_id"] = self.peer_id
        output = {"state": state, "block_id": payload["block_id"],
                  "fragment_ids": [f["fragment_id"] for f in payload["fragments"]],
                  "component_qubits": state["qubit_ids"], "gate_count": 1, "circuit_depth": 1,
                  "state_transfer_bytes": len(json.dumps(state))}
        return answer | {"transition": "completed", "output_payload": output, "latency_ms": 1.5, "fidelity_score": 0.97}


async def serve(host, peer, quiet):
    def handler(step):
        async def handle(stream):
            data = await stream.read(LIMIT)
            request = json.loads(data)
            if not quiet:
                say("request", step=step, document=request, peer=str(stream.muxed_conn.peer_id))
            await stream.write(json.dumps(peer.answer(step, request)).encode())
            await stream.close()
        return handle

    for step, protocol in STEPS.items():
        host.set_stream_handler(protocol, handler(step))


async def call(host, peer_id, step, document, half_close=False):
    stream = await host.new_stream(peer_id, [STEPS[step]])
    await stream.write(json.dumps(document).encode())
    if half_close:
        await stream.close()
    data = await stream.read(LIMIT)
    if not half_close:
        await stream.close()
    return json.loads(data) if data else None


def documents(me, n_qubits=2):
    rid, xid = f"res-{uuid.uuid4()}", f"exec-{uuid.uuid4()}"
    head = {"reservation_id": rid, "workflow_run_id": "workflow-python-1", "fragment_id": "block-s01-b01"}
    prepare = head | {"requesting_peer_id": me, "service_id": "bell_pair", "estimated_qubits": n_qubits,
                      "estimated_depth": 1, "priority": 0, "ttl_seconds": 60, "idempotency_key": uuid.uuid4().hex,
                      "sent_at": now()}
    commit = head | {"sent_at": now()}
    cancel = {"reservation_id": rid, "reason": "no longer needed", "sent_at": now()}
    fragment = {"fragment_id": "frag-0001", "service_id": "bell_pair", "qubits": [0, 1], "operation_ids": ["op-0001"],
                "dependencies": [], "raw_text": ""}
    dispatch = head | {"execution_id": xid, "service_id": "bell_pair", "max_retries": 2,
                       "idempotency_key": uuid.uuid4().hex, "dispatched_at": now(),
                       "input_payload": {"plan_id": "plan-python-1", "block_id": "block-s01-b01", "fragment": None,
                                         "fragments": [fragment],
                                         "state": {"num_qubits": n_qubits, "qubit_ids": list(range(n_qubits)),
                                                   "amplitudes": None, "measured_qubits": [],
                                                   "previous_peer_id": None}}}
    return prepare, commit, cancel, dispatch


async def drive(host, info, me):
    """Through everything once, then what must be refused."""
    prepare, commit, cancel, dispatch = documents(me)
    say("answer", step="prepare", document=await call(host, info.peer_id, "prepare", prepare))
    say("answer", step="commit", document=await call(host, info.peer_id, "commit", commit, half_close=True))
    say("answer", step="dispatch", document=await call(host, info.peer_id, "dispatch", dispatch))
    say("answer", step="again", document=await call(host, info.peer_id, "dispatch", dispatch, half_close=True))
    prepare, commit, cancel, _ = documents(me)
    await call(host, info.peer_id, "prepare", prepare)
    say("answer", step="cancel", document=await call(host, info.peer_id, "cancel", cancel))
    say("answer", step="commit after cancel", document=await call(host, info.peer_id, "commit", commit))
    prepare, commit, _, dispatch = documents(me, 11)
    await call(host, info.peer_id, "prepare", prepare)
    await call(host, info.peer_id, "commit", commit)
    dispatch["input_payload"]["fragments"][0] |= {
        "service_id": "hadamard", "qubits": list(range(11))}
    say("answer", step="too large", document=await call(host, info.peer_id, "dispatch", dispatch))


async def speed(host, info, me, seconds, concurrency):
    for last in ("cancel", "dispatch"):
        took, committed, failed = [], [], 0
        end = time.monotonic() + seconds

        async def loops():
            nonlocal failed
            while time.monotonic() < end:
                prepare, commit, cancel, dispatch = documents(me)
                start = time.monotonic()
                a = await call(host, info.peer_id, "prepare", prepare)
                b = await call(host, info.peer_id, "commit", commit)
                middle = time.monotonic()
                c = await call(host, info.peer_id, last, cancel if last == "cancel" else dispatch)
                if (a["transition"], b["transition"]) != ("accepted", "committed") or c["transition"] == "failed":
                    failed += 1
                    continue
                took.append(time.monotonic() - start)
                committed.append(middle - start)

        begin = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(loops)
        committed.sort()
        quantile = lambda q: round(1000 * committed[min(len(committed) - 1, int(q * len(committed)))], 3)
        say("speed", loop=f"prepare+commit+{last}", concurrency=concurrency, failed=failed,
            per_second=round(len(took) / (time.monotonic() - begin), 1),
            committed_p50_ms=quantile(0.5), committed_p99_ms=quantile(0.99))


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["peer", "client", "speed"])
    parser.add_argument("--bootstrap")
    parser.add_argument("--peer")
    parser.add_argument("--key", default="ed25519", choices=["ed25519", "rsa"])
    parser.add_argument("--behaviour", default="honest", choices=["honest", "defaults", "wrong", "first"])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    host = new_host(key_pair=rsa() if args.key == "rsa" else ed25519())
    listen = Multiaddr("/ip4/127.0.0.1/tcp/0")
    router = GossipSub(["/meshsub/1.0.0"], 8, 6, 12, heartbeat_interval=1)
    pubsub = Pubsub(host, router)
    me = str(host.get_id())
    async with host.run(listen_addrs=[listen]), background_trio_service(pubsub), background_trio_service(router):
        await pubsub.wait_until_ready()
        own = [str(a) for a in host.get_addrs()]
        await serve(host, Peer(me, args.behaviour), args.quiet)
        subscriptions = [await pubsub.subscribe(topic) for topic in TOPICS]
        say("listening", peer_id=me, addresses=own)
        if target := args.bootstrap or args.peer:
            info = info_from_p2p_addr(Multiaddr(target))
            await host.connect(info)
            say("connected", peer_id=str(info.peer_id))
        async with trio.open_nursery() as nursery:
            async def listen_to(subscription):
                while True:
                    message = await subscription.get()
                    say("gossip", topic=message.topicIDs[0], document=json.loads(message.data))

            if not args.quiet and args.mode != "speed":
                for subscription in subscriptions:
                    nursery.start_soon(listen_to, subscription)
            if args.mode == "client":
                await drive(host, info, me)
            elif args.mode == "speed":
                await speed(host, info, me, args.seconds, args.concurrency)
                nursery.cancel_scope.cancel()
                return

            while args.mode != "speed":
                for topic, document in zip(TOPICS, gossip_of(me, own)):
                    if args.mode == "peer":
                        await pubsub.publish(topic, json.dumps(document).encode())
                await trio.sleep(0.3)


try:
    trio.run(main)
except KeyboardInterrupt:
    sys.exit(0)
