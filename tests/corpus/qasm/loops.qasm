OPENQASM 3;
include "stdgates.inc";
input float theta;
input int n;
qubit[6] q; bit[3] c; bit d;
let a = q[0:2]; let b = q[5:-2:1] ++ q[{0, 4}];
gate g(t) x, y { gphase(t/2); for int k in [1:2] { pow(k/2) @ rx(t*k) x; } ctrl @ rz(-t) x, y; }
reset q;
for uint i in [0:n] { g(theta*i) a[i], b[i]; for float f in {0.5, 1/3} ry(f) q[-i-1]; }
for int j in [3:-1:0] h q[j];
ctrl @ g(0.3) q[4], q[0:1], q[2:3]; negctrl(2) @ pow(0.25) @ swap q[0], q[1], q[2], q[3];
ctrl @ inv @ gphase(sin(theta)) q[-1]; barrier a, q[5];
c[2:-1:0] = measure q[0:2]; d = measure q[5];
