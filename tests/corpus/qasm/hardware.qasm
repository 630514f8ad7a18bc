bit[2] c; h $0; cx $0, $2; pow(-1.5) @ u(1, 2, 3) $1; rccx $0, $1, $2; c[0] = measure $2; measure $1 -> c[1];
