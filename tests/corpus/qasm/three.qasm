OPENQASM 3.0;
include "stdgates.inc";
const int n = 2; const float t = pi/n;
qubit[3] q; bit[3] c;
ctrl(2) @ rx(t) q[0], q[1], q[2]; negctrl @ h q[0], q[n-1];
inv @ pow(2) @ s q[0]; gphase(sin(t));
/* measure */ c[0] = measure q[2]; bit d = measure q[0];
