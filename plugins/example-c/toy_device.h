/*
 * Stands for the hardware: the exact state of at most ten qubits. A real plugin has its control stack's client here.
 * Valid C99 and C++17, for the examples in both languages.
 */
#ifndef TOY_DEVICE_H
#define TOY_DEVICE_H

#include "coda_executor.h"
#include <math.h>
#include <stdlib.h>

#define TOY_MAX_QUBITS 10

/* The number behind a top-level key of device.yaml, or `otherwise`. Real plugins use a YAML library. */
static inline double toy_number(coda_str yaml, const char *key, double otherwise) {
    char text[32] = "";
    size_t i, k, len = strlen(key);
    for (i = 0; i + len < yaml.len; i++)
        if ((i == 0 || yaml.ptr[i - 1] == '\n') && memcmp(yaml.ptr + i, key, len) == 0 && yaml.ptr[i + len] == ':') {
            for (k = 0; k + 1 < sizeof text && i + len + 1 + k < yaml.len; k++) text[k] = yaml.ptr[i + len + 1 + k];
            return atof(text);
        }
    return otherwise;
}

typedef struct toy_qubits {
    size_t len; /* 2^qubits */
    double re[1 << TOY_MAX_QUBITS], im[1 << TOY_MAX_QUBITS];
    double sums[1 << TOY_MAX_QUBITS]; /* of probabilities, after toy_prepare */
    uint64_t random;
} toy_qubits;

static inline void toy_zero(toy_qubits *t, unsigned count, uint64_t seed) {
    memset(t, 0, sizeof *t);
    t->len = (size_t)1 << count;
    t->re[0] = 1.0;
    t->random = seed | 1;
}

/* A matrix on one qubit, row by row, real and imaginary parts in turn. */
static inline void toy_turn(toy_qubits *t, unsigned q, const double m[8]) {
    size_t i, bit = (size_t)1 << q;
    for (i = 0; i < t->len; i++) {
        double xr = t->re[i], xi = t->im[i], yr, yi;
        if (i & bit) continue;
        yr = t->re[i | bit], yi = t->im[i | bit];
        t->re[i] = m[0] * xr - m[1] * xi + m[2] * yr - m[3] * yi;
        t->im[i] = m[0] * xi + m[1] * xr + m[2] * yi + m[3] * yr;
        t->re[i | bit] = m[4] * xr - m[5] * xi + m[6] * yr - m[7] * yi;
        t->im[i | bit] = m[4] * xi + m[5] * xr + m[6] * yi + m[7] * yr;
    }
}

/* Executes one gate of the target cz; 0 when this device has no such gate. */
static inline int toy_apply(toy_qubits *t, const coda_gate *g) {
    double c = cos(g->param / 2), s = sin(g->param / 2);
    const double rx[8] = {c, 0, 0, -s, 0, -s, c, 0};
    const double ry[8] = {c, 0, -s, 0, s, 0, c, 0};
    const double rz[8] = {c, -s, 0, 0, 0, 0, c, s};
    size_t i, both = ((size_t)1 << g->q0) | ((size_t)1 << g->q1);
    switch (g->kind) {
    case CODA_GATE_RX: toy_turn(t, g->q0, rx); return 1;
    case CODA_GATE_RY: toy_turn(t, g->q0, ry); return 1;
    case CODA_GATE_RZ: toy_turn(t, g->q0, rz); return 1;
    case CODA_GATE_CZ:
        for (i = 0; i < t->len; i++)
            if ((i & both) == both) t->re[i] = -t->re[i], t->im[i] = -t->im[i];
        return 1;
    case CODA_GATE_ID: return 1;
    default: return 0;
    }
}

static inline void toy_prepare(toy_qubits *t) {
    double sum = 0;
    size_t i;
    for (i = 0; i < t->len; i++) t->sums[i] = sum += t->re[i] * t->re[i] + t->im[i] * t->im[i];
}

/* Measures all qubits; bit q of the result is the outcome of qubit q. */
static inline size_t toy_measure(toy_qubits *t) {
    size_t low = 0, high = t->len - 1;
    double r;
    t->random ^= t->random >> 12, t->random ^= t->random << 25, t->random ^= t->random >> 27;
    r = (double)((t->random * UINT64_C(0x2545f4914f6cdd1d)) >> 11) / 9007199254740992.0 * t->sums[t->len - 1];
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->sums[middle] <= r) low = middle + 1;
        else high = middle;
    }
    return low;
}

#endif
