OPENQASM 2.0;
include "qelib1.inc";
gate pair(a) x, y { h x; rx(a/2) y; cx x, y; barrier x, y; }
qreg q[3]; creg c[3];
pair(3*pi/4) q[1], q[2];
u3(0.1,-0.2,2^-1) q[0]; cu1(1e-7) q[2],q[0]; ccx q[0],q[1],q[2];
barrier q; // all
measure q -> c;
