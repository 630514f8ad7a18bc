OPENQASM 3.0;
qubit[4] q;
bit[4] c;
for i in [0:1] {
  bell_pair q[2*i], q[2*i+1];
}
qft q[0:3];
controlled u(pi/4) q[0], q[1];
controlled h q[0], q[2];
iqft q[0], q[1];
teleport q[0], q[3];
inv @ bell_pair q[0], q[1]; ctrl @ qft q[3], q[0:2]; cu(1,2,3,4) q[0], q[1]; u0(1) q[2];
measure q[0] -> c[0];
