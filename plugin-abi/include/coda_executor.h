/*
 * coda_executor.h - the interface between coda-host and an executor plugin written in C or C++.
 *
 * A plugin is a shared library that
 *   - exports one function, coda_executor_entry, which returns the table of its functions, and
 *   - carries a descriptor, written by CODA_EXECUTOR_DESCRIPTOR once in the library, which the host reads
 *     from the file before it loads anything.
 *
 * Rules that hold everywhere:
 *   - Memory never changes its owner. What a function is given is lent for the length of the call, and what
 *     the plugin passes to a reply or to the host is copied before that call returns. The one exception is
 *     coda_create.host, which stays valid until destroy has returned.
 *   - Text is UTF-8 with a length. It need not end with a NUL, and its pointer may be null when its length
 *     is 0.
 *   - A struct that begins with `size` may grow at its end. Whoever fills it in sets `size` to the sizeof it
 *     was compiled with; whoever reads it uses no field beyond `size`.
 *   - Enumerations are plain integers with the constants below. Treat a value you don't know as an error of
 *     the call, not as impossible.
 *   - No exception and no longjmp may leave a function of the plugin. Catch everything and reply an error
 *     with CODA_ERROR_PANIC.
 *
 * Threads, for one executor:
 *   - create and destroy come from one thread, with no other call beside them.
 *   - run, batch_run and evolve_state come from at most coda_device.slots threads at once; each slot always
 *     uses the same thread, with a stack of 8 MiB. They may block for as long as the hardware needs.
 *   - device, cancel and shutdown come from a control thread of their own, at any time between create and
 *     destroy, beside running jobs, and must return within seconds.
 *   - config_schema needs no executor and may come from any thread at any time.
 *
 * Leave the process as it is: no signal handlers, no setlocale, no chdir, no umask, no exit.
 *
 * Valid C99 and C++17. Needs GCC or Clang on an ELF system.
 */
#ifndef CODA_EXECUTOR_H
#define CODA_EXECUTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define CODA_EXTERN_C_BEGIN extern "C" {
#define CODA_EXTERN_C_END }
#else
#define CODA_EXTERN_C_BEGIN
#define CODA_EXTERN_C_END
#endif

/* Makes a symbol visible even in a library that is compiled with hidden visibility. */
#define CODA_EXPORT __attribute__((visibility("default")))

CODA_EXTERN_C_BEGIN

/* Version of this interface. The host serves plugins of its own major whose minor is not newer than its own. */
#define CODA_API_MAJOR 1
#define CODA_API_MINOR 2

/* ---- Plain data ---- */

/* Borrowed UTF-8 text. */
typedef struct coda_str {
    const char *ptr;
    size_t len;
} coda_str;

/* Text of a NUL-terminated string, lent for as long as that string lives. */
static inline coda_str coda_str_of(const char *text) {
    coda_str s;
    s.ptr = text;
    s.len = text ? strlen(text) : 0;
    return s;
}

/* Native gates: coda_gate.kind. */
#define CODA_GATE_RX 1         /* rotation about x by param */
#define CODA_GATE_RY 2         /* rotation about y by param */
#define CODA_GATE_RZ 3         /* diag(e^(-i param/2), e^(i param/2)) */
#define CODA_GATE_X90 4        /* rx(+pi/2) */
#define CODA_GATE_Y_MINUS_90 5 /* ry(-pi/2) */
#define CODA_GATE_VIRTUAL_Z 6  /* change of frame, acts as rz(param) */
#define CODA_GATE_ID 7         /* idle for param nanoseconds */
#define CODA_GATE_CZ 32        /* controlled Z */
#define CODA_GATE_ISWAP 33     /* exchanges |01> and |10> with a factor i */
#define CODA_GATE_CP 34        /* diag(1, 1, 1, e^(i param)) */
#define CODA_GATE_CNOT 35      /* controlled X, q0 the control */

/* One native gate, 16 bytes. Unused qubits, reserved and an unused param are 0. */
typedef struct coda_gate {
    uint16_t kind;
    uint16_t q0;
    uint16_t q1;
    uint16_t reserved;
    double param; /* radians, or for CODA_GATE_ID nanoseconds */
} coda_gate;

/* Native gate sets: coda_program.target, coda_device.targets. */
#define CODA_TARGET_CZ 1
#define CODA_TARGET_ISWAP 2
#define CODA_TARGET_PCZ 3
#define CODA_TARGET_CNOT 4

/* A legal circuit: gates belong to the target, qubits are in range and distinct, parameters finite. */
typedef struct coda_program {
    size_t size;
    uint16_t target;
    uint16_t num_qubits;         /* 1 to 50 */
    uint32_t optimization_level; /* 0 to 3, as the compiler noted it */
    const coda_gate *gates;      /* in execution order */
    size_t gates_len;
    /* Character i of a counts key is the outcome of qubit measurements[i] (not reversed). A qubit that is
     * listed twice is measured once: both characters carry the same outcome. */
    const uint16_t *measurements;
    size_t measurements_len;
    coda_str source_hash;
    coda_str compiled_at;
    coda_str compiler_version;
} coda_program;

/* Levels of coda_host.log. */
#define CODA_LOG_ERROR 1
#define CODA_LOG_WARN 2
#define CODA_LOG_INFO 3
#define CODA_LOG_DEBUG 4
#define CODA_LOG_TRACE 5

/* What the host lends. Each function takes `ctx` first, may be called from any thread and never blocks. Those of a job do
 * nothing once its call has returned, except that is_cancelled is 1 then; each such use is an error in the log. */
typedef struct coda_host {
    size_t size;
    void *ctx;
    /* 1 when a message of this level would be kept; spares you making it. */
    uint32_t (*log_enabled)(void *ctx, uint32_t level);
    void (*log)(void *ctx, uint32_t level, coda_str text);
    /* How far the run is, in units of your choice; total 0 when unknown. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    /* 1 when the job was cancelled and its result will be thrown away. */
    uint32_t (*is_cancelled)(void *ctx);
    /* Since 1.1. The present value of a quantity of yours, for instance "fridge_kelvin": the host shows the
     * latest in its metrics, as coda_plugin_<name>. Letters, digits and _; what doesn't fit is dropped. */
    void (*gauge)(void *ctx, coda_str name, double value);
} coda_host;

/* One job of run or batch_run. */
typedef struct coda_job {
    size_t size;
    coda_str job_id;
    const coda_program *program;
    uint32_t shots; /* 1 to 2^31-1 */
    uint32_t reserved;
    const coda_host *host; /* of this job, for the length of the call */
} coda_job;

/* A complex number. The state of n qubits is 2^n of them; bit k of an index is the value of qubit k. */
typedef struct coda_amplitude {
    double re;
    double im;
} coda_amplitude;

/* One step of evolve_state: a unitary 2x2 matrix on one qubit, where every qubit of `controls` is 1. */
typedef struct coda_operation {
    uint64_t controls; /* bit k set: qubit k controls; 0 for none, never the target */
    uint32_t target;
    uint32_t reserved;
    coda_amplitude matrix[4]; /* row by row: <0|U|0>, <0|U|1>, <1|U|0>, <1|U|1> */
} coda_operation;

/* What evolve_state is given. */
typedef struct coda_evolution {
    size_t size;
    coda_str job_id;
    uint32_t num_qubits; /* 1 to coda_device.evolve_qubits */
    uint32_t reserved;
    const coda_amplitude *amplitudes; /* 2^num_qubits, finite, of norm 1 */
    size_t amplitudes_len;
    const coda_operation *operations; /* in order; qubits are in range and distinct, numbers finite */
    size_t operations_len;
    const coda_host *host; /* of this job, for the length of the call */
} coda_evolution;

/* How often a bit string was observed. */
typedef struct coda_count {
    coda_str bits; /* one '0' or '1' per entry of measurements */
    int64_t count; /* 0 or more; each key once */
} coda_count;

/* A finished run. */
typedef struct coda_outcome {
    size_t size;
    const coda_count *counts;
    size_t counts_len;
    double execution_time_ms; /* on the hardware; finite, 0 or more; read when has_execution_time is 1 */
    int64_t shots_completed;  /* the sum of the counts; read when has_shots_completed is 1 */
    uint32_t has_execution_time;
    uint32_t has_shots_completed;
} coda_outcome;

/* What kind of failure it is: coda_error.code. */
#define CODA_ERROR_OTHER 0
#define CODA_ERROR_CONFIG 1      /* the device config lacks something or holds a bad value */
#define CODA_ERROR_UNSUPPORTED 2 /* a legal circuit that this device can't run */
#define CODA_ERROR_RESOURCES 3   /* too large for the device's memory, time or buffers */
#define CODA_ERROR_HARDWARE 4    /* the hardware or its control stack failed */
#define CODA_ERROR_CALIBRATION 5 /* the device needs calibration */
#define CODA_ERROR_TIMEOUT 6     /* something did not answer in time */
#define CODA_ERROR_CANCELLED 7   /* the run ended because it was cancelled */
#define CODA_ERROR_PANIC 8       /* an exception or other bug of the plugin */
#define CODA_ERROR_CONTRACT 9    /* the plugin broke the rules of this file */

/* During which step: coda_error.stage. */
#define CODA_STAGE_OTHER 0
#define CODA_STAGE_CREATE 1
#define CODA_STAGE_DESCRIBE 2
#define CODA_STAGE_COMPILE 3
#define CODA_STAGE_RUN 4
#define CODA_STAGE_READOUT 5
#define CODA_STAGE_CANCEL 6
#define CODA_STAGE_SHUTDOWN 7

/* A failure. */
typedef struct coda_error {
    size_t size;
    uint32_t code;
    uint32_t stage;
    uint32_t retryable; /* 1 when the same job may succeed when it is sent again */
    uint32_t reserved;
    coda_str text; /* what happened, for the person who sent the job */
} coda_error;

/* Two qubits that can interact; for a directed device a is the control. */
typedef struct coda_edge {
    uint16_t a;
    uint16_t b;
} coda_edge;

/* coda_device.connectivity. */
#define CODA_CONNECTIVITY_UNKNOWN 0 /* not reported: any pair is accepted */
#define CODA_CONNECTIVITY_UNDIRECTED 1
#define CODA_CONNECTIVITY_DIRECTED 2

/* Bits of coda_device.hooks: which optional functions the executor offers. */
#define CODA_HOOK_BATCH_RUN 1
#define CODA_HOOK_CANCEL 2
#define CODA_HOOK_EVOLVE_STATE 4 /* since 1.1 */

/* What the executor says of its device. It decides which jobs reach the executor. */
typedef struct coda_device {
    size_t size;
    coda_str name;
    uint32_t num_qubits; /* 1 to 50 */
    uint32_t slots;      /* how many runs the device takes at the same time, 1 or more */
    uint32_t max_shots;  /* most shots per job, 0 for no limit of its own */
    uint32_t connectivity;
    uint32_t hooks;
    uint32_t reserved;
    const uint16_t *targets; /* native gate sets, the preferred one first */
    size_t targets_len;
    const coda_edge *edges;
    size_t edges_len;
    uint32_t evolve_qubits; /* since 1.1: most qubits of evolve_state, with CODA_HOOK_EVOLVE_STATE */
    uint32_t reserved2;
} coda_device;

/* Index of coda_reply.error that concerns the call, not one job of it. */
#define CODA_WHOLE_CALL SIZE_MAX

/* Where a call's answers go. Each function takes `ctx` first and copies what it is given before it returns.
 * Use it during the call it was passed to, from any thread. Each job gets one answer: a further one fails it. What
 * comes after the call has returned is logged as an error of the plugin and has no effect. */
typedef struct coda_reply {
    size_t size;
    void *ctx;
    /* The result of job `index` of the call; 0 for run. */
    void (*outcome)(void *ctx, size_t index, const coda_outcome *outcome);
    /* The failure of job `index`, or of the call with CODA_WHOLE_CALL. */
    void (*error)(void *ctx, size_t index, const coda_error *error);
    /* The answer to device. */
    void (*device)(void *ctx, const coda_device *device);
    /* Since 1.1. The answer to evolve_state: as many amplitudes as were given. */
    void (*amplitudes)(void *ctx, const coda_amplitude *amplitudes, size_t len);
    /* Since 1.1. The answer to config_schema: a JSON schema. */
    void (*schema)(void *ctx, coda_str json);
} coda_reply;

/* Replies an error, for a job's index or CODA_WHOLE_CALL. */
static inline void coda_fail(const coda_reply *reply, size_t index, uint32_t code, uint32_t stage, const char *text) {
    coda_error error;
    memset(&error, 0, sizeof error);
    error.size = sizeof error;
    error.code = code;
    error.stage = stage;
    error.text = coda_str_of(text);
    reply->error(reply->ctx, index, &error);
}

/* What create is given. Lent for the length of create, except host. */
typedef struct coda_create {
    size_t size;
    coda_str entry;           /* which of the descriptor's entries is asked for */
    coda_str config_path;     /* absolute path of the device config, empty when there is none */
    coda_str config_text;     /* its text; the key executor_factory is the host's own, ignore it */
    coda_str native_gate_set; /* the gate set the QPU is registered with: cz, iswap, pcz or cnot */
    uint32_t num_qubits;      /* the number of qubits it is registered with */
    uint32_t reserved;
    const coda_host *host; /* valid until destroy has returned */
} coda_create;

/* ---- Functions ---- */

/* The function table. Static, constant, valid until the process ends; functions are only ever appended.
 * Every function that is not marked optional must be there. */
typedef struct coda_executor_api {
    size_t size; /* sizeof(coda_executor_api) */
    uint16_t api_major;
    uint16_t api_minor;
    uint32_t reserved;
    /* Makes the executor of the entry. Returns a pointer that only this plugin looks into and that the host
     * gives back to destroy, once. When it can't: replies one error for CODA_WHOLE_CALL and returns null.
     * Must return only when the device is idle, ending whatever an earlier run left there. */
    void *(*create)(const coda_create *request, const coda_reply *reply);
    /* Describes the device as it is now, by one call of reply->device. */
    void (*device)(void *self, const coda_reply *reply);
    /* Runs one job. Replies once: an outcome or an error, for index 0. */
    void (*run)(void *self, const coda_job *job, const coda_reply *reply);
    /* Optional (null without CODA_HOOK_BATCH_RUN). Runs `len` jobs, which take one slot together. Replies
     * once for each index, or one error for CODA_WHOLE_CALL when none of them ran. */
    void (*batch_run)(void *self, const coda_job *jobs, size_t len, const coda_reply *reply);
    /* Optional (null without CODA_HOOK_CANCEL). Asks the run of this job to end soon. Comes at most once per
     * job, between entry and return of its run. Ignore an id that isn't running. Replies only errors. */
    void (*cancel)(void *self, const coda_str *job_id, const coda_reply *reply);
    /* Optional. Brings the device to rest; no call but destroy follows. Replies only errors. */
    void (*shutdown)(void *self, const coda_reply *reply);
    /* Frees the executor. Replies only errors. */
    void (*destroy)(void *self, const coda_reply *reply);
    /* Optional, since 1.1 (null without CODA_HOOK_EVOLVE_STATE). Applies the operations to the state, in one
     * slot; cancel and is_cancelled work as for run. Replies once: amplitudes, or an error for
     * CODA_WHOLE_CALL. */
    void (*evolve_state)(void *self, const coda_evolution *state, const coda_reply *reply);
    /* Optional, since 1.1. Replies the JSON schema of the entry's device config, or nothing. The host checks
     * the file against it before create; keys with "writeOnly": true are secrets, shown nowhere. */
    void (*config_schema)(const coda_str *entry, const coda_reply *reply);
} coda_executor_api;

/* The one function that a plugin exports. Called once after loading; must not block. */
CODA_EXPORT const coda_executor_api *coda_executor_entry(void);

/* ---- Descriptor ---- */

/* What stands behind the executor. */
#define CODA_KIND_HARDWARE 1
#define CODA_KIND_SIMULATOR 2
#define CODA_KIND_TEST 3

/* Where the plugin may run (since 1.2): where the operator wants it, or only in a separate process. */
#define CODA_ISOLATION_CONFIGURED 0
#define CODA_ISOLATION_REQUIRED 1

/* Content of the section .coda_executor. Text is padded with NUL; little-endian. */
typedef struct coda_descriptor {
    char magic[8];
    uint32_t size;
    uint16_t api_major;
    uint16_t api_minor;
    uint8_t binding; /* 2: this header */
    uint8_t kind;
    uint8_t unwinds;
    uint8_t isolation; /* since 1.2: CODA_ISOLATION_... */
    uint8_t reserved[4];
    char vendor[64];
    char name[64];
    char version[32];
    char compiler[80];
    char target[48];
    char entries[256];
} coda_descriptor;

#define CODA_TEXT_(x) #x
#define CODA_TEXT(x) CODA_TEXT_(x)

#if defined(__clang__)
#define CODA_COMPILER "clang " CODA_TEXT(__clang_major__) "." CODA_TEXT(__clang_minor__)
#elif defined(__GNUC__)
#define CODA_COMPILER "gcc " CODA_TEXT(__GNUC__) "." CODA_TEXT(__GNUC_MINOR__)
#else
#define CODA_COMPILER ""
#endif

#if defined(__x86_64__) && defined(__linux__)
#define CODA_TARGET_TRIPLE "x86_64-unknown-linux-gnu"
#elif defined(__aarch64__) && defined(__linux__)
#define CODA_TARGET_TRIPLE "aarch64-unknown-linux-gnu"
#else
#define CODA_TARGET_TRIPLE ""
#endif

/*
 * Writes the descriptor; use it once per library, at file scope, for instance
 *
 *     CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_HARDWARE, "Acme", "acme-qpu", "1.2.0", "create_executor")
 *
 * `entries` are the names that coda_create.entry may hold, separated by commas. A text that is too long for
 * its field does not compile.
 */
#define CODA_EXECUTOR_DESCRIPTOR(kind_, vendor_, name_, version_, entries_) \
    CODA_DESCRIPTOR_(CODA_ISOLATION_CONFIGURED, kind_, vendor_, name_, version_, entries_)

/*
 * Since 1.2: the same for a plugin that needs a separate process, because a library under it may crash, starts helper
 * processes, or blocks in a cancel. The host then starts one, whatever the operator has set.
 */
#define CODA_EXECUTOR_DESCRIPTOR_ISOLATED(kind_, vendor_, name_, version_, entries_) \
    CODA_DESCRIPTOR_(CODA_ISOLATION_REQUIRED, kind_, vendor_, name_, version_, entries_)

#define CODA_DESCRIPTOR_(isolation_, kind_, vendor_, name_, version_, entries_)                               \
    CODA_EXTERN_C_BEGIN                                                                                       \
    extern CODA_EXPORT const coda_descriptor coda_executor_descriptor;                                        \
    const coda_descriptor coda_executor_descriptor __attribute__((section(".coda_executor"), used)) = {       \
        {'C', 'O', 'D', 'A', 'E', 'X', 'E', 'C'},                                                             \
        (uint32_t)sizeof(coda_descriptor),                                                                    \
        CODA_API_MAJOR,                                                                                       \
        CODA_API_MINOR,                                                                                       \
        2,                                                                                                    \
        kind_,                                                                                                \
        1,                                                                                                    \
        isolation_,                                                                                           \
        {0, 0, 0, 0},                                                                                         \
        vendor_,                                                                                              \
        name_,                                                                                                \
        version_,                                                                                             \
        CODA_COMPILER,                                                                                        \
        CODA_TARGET_TRIPLE,                                                                                   \
        entries_};                                                                                            \
    CODA_EXTERN_C_END

CODA_EXTERN_C_END

#endif /* CODA_EXECUTOR_H */
