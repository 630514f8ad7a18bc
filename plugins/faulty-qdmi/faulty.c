/*
 * A QDMI device library that simulates a few qubits exactly and misbehaves on request, to test what is made of it.
 * Built twice: QDMI_MINOR=3 and QDMI_MINOR=4 are the two interfaces that libraries have. Never use it as an example.
 *
 * What it does wrong is a text of words, separated by blanks or semicolons, in CODA_FAULTY_QDMI (environment), in CUSTOM1
 * of the session and in CUSTOM1 of a job. A word is `name` or `name=value`. With `@N` behind it it applies only to jobs of
 * N shots (which are known once they have been set), with `#N` only to the job that is created as the N-th of the process,
 * so that the jobs beside it are good ones.
 *
 *   status:CALL=CODE   CALL returns CODE and does nothing, or with 1 (a warning) what it should do; CALL is initialize, alloc, set_session, init, session_query,
 *                      site_query, operation_query, create_job, set_job, set_programs, job_query, submit, check, results,
 *                      cancel, retrieve; with `status:CALL:N=CODE` only for parameter, property or result N
 *   token=TEXT         init refuses every other TOKEN with -8
 *   block=MS           submit returns after so long, or when the job is cancelled; block_deaf=MS heeds no cancel
 *   check_fails=N      the first N checks return -1
 *   queue_ms=MS        so long queued, and run_ms=MS so long running
 *   never              it runs for ever; cancel_ignored: a cancel has no effect; cancel_blocks: and does not return
 *   ends=STATUS        its last status is STATUS instead of 4 (6 failed, 5 cancelled, any other number); part_fails=I: the
 *                      program at I of a list fails
 *   wide narrow        keys have a character too many, one too few; letters: a key has another character
 *   sum=N              so many counts more than shots, or less
 *   twice              the first key comes twice; no_nul: the keys end without one; not_text: they are not text
 *   size0              keys and values have size 0; no_results: they are refused with -10
 *   few_values         a value less than keys; odd_values: the values' size is not a multiple of 8; overflow: values near 2^64
 *   huge               a size of 2^40 bytes is claimed; grows: the second answer is larger than the first said
 *   only_shots         the outcomes of single shots alone are there
 *   crash=CALL exit=CALL abort=CALL     the process ends in that call, without a call in submit; hang=CALL: it does not return
 *   print=TEXT         submit prints TEXT to stderr (underscores stand for blanks)
 *   gaps zones resonators               site numbers with gaps; zones among the sites; sites behind the qubits
 *   no_map odd_map no_sites no_formats lists=no many=N (claims N sites of QUBITSNUM)
 *   formats=N,N        program formats; ops=NAMES: operations, with commas; device_status=N; version=TEXT (LIBRARYVERSION)
 *   order=left         the first character of a key is the first bit; otherwise the last one is
 *   life               lifecycle calls and settings are printed to stderr
 *
 * It keeps what the interface's text says to the letter: texts end with one NUL, sizes fit, nothing is asked of a job that
 * is not done. It may be called from one thread alone, except that another may cancel a job that is in submit: a call from
 * elsewhere is refused with -1, and printed.
 */
#define _GNU_SOURCE
#include <complex.h>
#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NAME(function) CODA_FAULTY_QDMI_device_##function
#define LIBRARY_VERSION (QDMI_MINOR == 4 ? "1.4.0" : "1.3.2")

enum { WARNING = 1, OK = 0, FATAL = -1, NO_MEMORY = -2, NOT_FOUND = -5, OUT_OF_RANGE = -6, INVALID = -7, DENIED = -8, UNSUPPORTED = -9,
       BAD_STATE = -10 };
enum { CREATED, SUBMITTED, QUEUED, RUNNING, DONE, CANCELLED, FAILED };
enum { CUSTOM1 = 999999995, CUSTOM5 = 999999999 };
enum { QASM2 = 0, QASM3 = 1 };
/* SLICE: of the shots of a job, so many are done between two looks at it, so that a look takes milliseconds. */
enum { MAX_QUBITS = 8, MAX_SITES = 64, MAX_PROGRAMS = 256, TEXT = 1024, SLICE = 100000 };

typedef struct Site { size_t index; int is_zone; char name[16]; } Site;
typedef struct Operation { char name[16]; size_t qubits, parameters; } Operation;
typedef struct Session {
    char faults[TEXT], token[TEXT];
    int is_ready;
    Site sites[MAX_SITES];
    size_t sites_len, qubits;
    Operation operations[16];
    size_t operations_len;
} Session;
typedef struct Program {
    char *text;
    size_t len, width, shots_left;
    int status;
    double probabilities[1u << MAX_QUBITS];
    size_t counts[1u << MAX_QUBITS]; /* both by key: bit k is c[k] */
} Program;
typedef struct Job {
    Session *session;
    char faults[TEXT], id[48];
    int format, status;
    size_t number, shots, programs_len, failed_checks;
    Program *programs;
    double submitted;
    atomic_int is_cancelled, is_in_submit;
} Job;

static pid_t owner;
static atomic_int uses;
static uint64_t random_state;
static size_t jobs_created;
static volatile int *volatile nowhere;
static int is_warning; /* the call that is under way was asked to warn */

/* ---- What is asked for ---- */

/* Looks for `name` in a text of faults; copies its value. */
static int find(const char *faults, const char *name, const Job *job, char *value) {
    const size_t len = strlen(name);
    while (*faults) {
        const size_t word = strcspn(faults, " ;"), body = strcspn(faults, " ;@#");
        const char *condition = faults + body;
        const size_t wanted = strtoull(condition + 1, NULL, 10);
        const int applies = body == word || (job && wanted == (*condition == '@' ? job->shots : job->number));
        if (applies && body >= len && !memcmp(faults, name, len) && (body == len || faults[len] == '=')) {
            const size_t from = body == len ? len : len + 1;
            if (value) snprintf(value, TEXT, "%.*s", (int)(body - from), faults + from);
            return 1;
        }
        faults += word + (faults[word] != 0);
    }
    return 0;
}

static int asked(const Session *session, const Job *job, const char *name, char *value) {
    const char *environment = getenv("CODA_FAULTY_QDMI");
    return (job && find(job->faults, name, job, value)) || (session && find(session->faults, name, job, value))
        || (environment && find(environment, name, job, value));
}

static long number(const Session *session, const Job *job, const char *name, long otherwise) {
    char value[TEXT];
    return asked(session, job, name, value) ? strtol(value, NULL, 10) : otherwise;
}

static void say(const char *format, const char *text) {
    fputs("faulty: ", stderr);
    fprintf(stderr, format, text);
    fputc('\n', stderr);
}

static void life(const Session *session, const Job *job, const char *what) {
    if (asked(session, job, "life", NULL)) say("%s", what);
}

/* What every call begins with; 0, or the status that it returns. */
static int enter(const char *call, const Session *session, const Job *job, int detail) {
    char name[TEXT], value[TEXT];
    if (owner && gettid() != owner && !(!strcmp(call, "cancel") && job && job->is_in_submit)) {
        say("%s was called from a second thread", call);
        return FATAL;
    }
    const char *ends[] = {"crash", "exit", "abort", "hang"};
    for (int i = 0; i < 4; i++) {
        if (!asked(session, job, ends[i], value) || strcmp(*value ? value : "submit", call)) continue;
        say(i == 3 ? "the process hangs in %s" : "the process ends in %s", call);
        while (i == 3) usleep(100000);
        if (i == 0) *nowhere = 1;
        if (i == 1) exit(0);
        abort();
    }
    int status = OK;
    snprintf(name, sizeof name, "status:%s:%d", call, detail);
    if (asked(session, job, name, value)) status = (int)strtol(value, NULL, 10);
    snprintf(name, sizeof name, "status:%s", call);
    if (asked(session, job, name, value)) status = (int)strtol(value, NULL, 10);
    is_warning = status == WARNING;
    return is_warning ? OK : status;
}

/* What a call returns that has done what it should. */
static int done(void) { return is_warning ? WARNING : OK; }

#define ENTER(call, session, job, detail)                          \
    do {                                                           \
        const int status_ = enter(call, session, job, detail);     \
        if (status_ != OK) return status_;                         \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double random_unit(void) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* Answers a query in the interface's way. */
static int answer(const void *data, size_t len, size_t size, void *value, size_t *size_ret) {
    if (value && (size < len || size == 0)) return INVALID;
    if (value) memcpy(value, data, len);
    if (size_ret) *size_ret = len;
    return done();
}

static int answer_text(const char *text, size_t size, void *value, size_t *size_ret) {
    return answer(text, strlen(text) + 1, size, value, size_ret);
}

static int is_text(const char *text, size_t size) { return size > 0 && memchr(text, 0, size) == text + size - 1; }

/* ---- The device ---- */

static void add_operation(Session *session, const char *name, size_t len) {
    static const struct { const char *name; size_t qubits, parameters; } known[] = {
        {"rx", 1, 1}, {"ry", 1, 1}, {"rz", 1, 1}, {"r", 1, 2}, {"prx", 1, 2}, {"sx", 1, 0}, {"x", 1, 0}, {"h", 1, 0},
        {"id", 1, 0}, {"cz", 2, 0}, {"cx", 2, 0}, {"cp", 2, 1}, {"cu1", 2, 1}, {"iswap", 2, 0}, {"move", 2, 0},
        {"measure", 1, 0}};
    Operation *made = &session->operations[session->operations_len];
    if (session->operations_len == 16) return;
    snprintf(made->name, sizeof made->name, "%.*s", (int)len, name);
    made->qubits = 1;
    made->parameters = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, made->name)) made->qubits = known[i].qubits, made->parameters = known[i].parameters;
    session->operations_len++;
}

static void describe(Session *session) {
    char names[TEXT] = "rx,ry,rz,cz,measure";
    const size_t zones = asked(session, NULL, "zones", NULL) ? 2 : 0;
    const size_t behind = asked(session, NULL, "resonators", NULL) ? 2 : 0;
    session->qubits = (size_t)number(session, NULL, "qubits", 5);
    if (session->qubits > MAX_QUBITS) session->qubits = MAX_QUBITS;
    size_t placed = 0, index = asked(session, NULL, "gaps", NULL) ? 10 : 0;
    while (placed < session->qubits + behind) {
        Site *site = &session->sites[session->sites_len++];
        site->is_zone = session->sites_len <= zones;
        snprintf(site->name, sizeof site->name, "%s%zu", site->is_zone ? "Z" : "QB", session->sites_len);
        site->index = index;
        index += asked(session, NULL, "gaps", NULL) ? 2 + session->sites_len % 2 : 1;
        placed += !site->is_zone;
    }
    asked(session, NULL, "ops", names);
    for (const char *name = names; *name; name += strcspn(name, ","), name += *name == ',')
        add_operation(session, name, strcspn(name, ","));
}

/* The qubit of a site, or -1. */
static int qubit_of(const Session *session, const Site *site) {
    int qubit = 0;
    for (size_t i = 0; i < session->sites_len; i++) {
        if (session->sites[i].is_zone) continue;
        if (&session->sites[i] == site) return (size_t)qubit < session->qubits ? qubit : -1;
        qubit++;
    }
    return -1;
}

static const Site *site_of_qubit(const Session *session, size_t qubit) {
    for (size_t i = 0; i < session->sites_len; i++)
        if (!session->sites[i].is_zone && qubit-- == 0) return &session->sites[i];
    return NULL;
}

/* The line of qubits, one way each; resonators are connected to the last qubit. */
static size_t couplings(const Session *session, const Site **pairs) {
    size_t len = 0;
    for (size_t q = 0; site_of_qubit(session, q + 1); q++) {
        pairs[len++] = site_of_qubit(session, q);
        pairs[len++] = site_of_qubit(session, q + 1);
    }
    return len;
}

/* ---- Programs ---- */

typedef struct Circuit {
    const Session *session;
    double complex state[1u << MAX_QUBITS];
    int measured[64]; /* the qubit of each bit, -1: none */
    size_t bits;
    int is_refused;
} Circuit;

static void apply(Circuit *c, int qubit, const double complex m[4], int control) {
    const size_t size = (size_t)1 << c->session->qubits, bit = (size_t)1 << qubit;
    for (size_t i = 0; i < size; i++) {
        if ((i & bit) || (control >= 0 && !(i >> control & 1))) continue;
        const double complex a = c->state[i], b = c->state[i | bit];
        c->state[i] = m[0] * a + m[1] * b;
        c->state[i | bit] = m[2] * a + m[3] * b;
    }
}

static void rotate(Circuit *c, int qubit, double theta, double phi) {
    const double cosine = cos(theta / 2), sine = sin(theta / 2);
    const double complex m[4] = {cosine, -I * sine * cexp(-I * phi), -I * sine * cexp(I * phi), cosine};
    apply(c, qubit, m, -1);
}

static void phase(Circuit *c, int qubit, double angle, int control) {
    const double complex m[4] = {1, 0, 0, cexp(I * angle)};
    apply(c, qubit, m, control);
}

static int gate(Circuit *c, const char *name, const double *p, int np, const int *q, int nq) {
    static const double complex x[4] = {0, 1, 1, 0};
    static const double complex h[4] = {M_SQRT1_2, M_SQRT1_2, M_SQRT1_2, -M_SQRT1_2};
    if (nq == 2 && q[0] == q[1]) return 0;
    if (nq == 1 && np == 1 && !strcmp(name, "rx")) rotate(c, q[0], p[0], 0);
    else if (nq == 1 && np == 1 && !strcmp(name, "ry")) rotate(c, q[0], p[0], M_PI_2);
    else if (nq == 1 && np == 1 && !strcmp(name, "rz")) phase(c, q[0], p[0], -1);
    else if (nq == 1 && np == 2 && (!strcmp(name, "r") || !strcmp(name, "prx"))) rotate(c, q[0], p[0], p[1]);
    else if (nq == 1 && np == 0 && !strcmp(name, "sx")) rotate(c, q[0], M_PI_2, 0);
    else if (nq == 1 && np == 0 && !strcmp(name, "x")) apply(c, q[0], x, -1);
    else if (nq == 1 && np == 0 && !strcmp(name, "h")) apply(c, q[0], h, -1);
    else if (nq == 1 && np == 0 && !strcmp(name, "s")) phase(c, q[0], M_PI_2, -1);
    else if (nq == 1 && np == 0 && !strcmp(name, "id")) return 1;
    else if (nq == 2 && np == 0 && !strcmp(name, "cz")) phase(c, q[1], M_PI, q[0]);
    else if (nq == 2 && np == 0 && !strcmp(name, "cx")) apply(c, q[1], x, q[0]);
    else if (nq == 2 && np == 1 && (!strcmp(name, "cp") || !strcmp(name, "cu1"))) phase(c, q[1], p[0], q[0]);
    else if (nq == 2 && np == 0 && !strcmp(name, "iswap")) {
        phase(c, q[0], M_PI_2, -1), phase(c, q[1], M_PI_2, -1), apply(c, q[0], h, -1);
        apply(c, q[1], x, q[0]), apply(c, q[0], x, q[1]), apply(c, q[1], h, -1);
    } else return 0;
    return 1;
}

static const char *skip(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* One operand: `$7`, or `q[3]`; NULL when it is none of this device. */
static const char *operand(const Circuit *c, const char *at, int *qubit) {
    char *end;
    at = skip(at);
    *qubit = -1;
    if (*at == '$') {
        const size_t index = strtoull(at + 1, &end, 10);
        for (size_t i = 0; i < c->session->sites_len; i++)
            if (c->session->sites[i].index == index) *qubit = qubit_of(c->session, &c->session->sites[i]);
    } else {
        if (strncmp(at, "q[", 2)) return NULL;
        const size_t index = strtoull(at + 2, &end, 10);
        if (index < c->session->qubits) *qubit = (int)index;
        if (*end++ != ']') return NULL;
    }
    return *qubit < 0 ? NULL : skip(end);
}

static int measure(Circuit *c, const char *bit, const char *qubit) {
    char *end;
    int measured;
    if (strncmp(bit, "c[", 2)) return 0;
    const size_t index = strtoull(bit + 2, &end, 10);
    if (*end != ']' || index >= c->bits || !operand(c, qubit, &measured)) return 0;
    c->measured[index] = measured;
    return 1;
}

/* One statement without its semicolon. */
static int statement(Circuit *c, const char *at) {
    char name[16], *end;
    double parameters[4];
    int np = 0, nq = 0, qubits[2];
    if (!*at || !strncmp(at, "OPENQASM", 8) || !strncmp(at, "include", 7)) return 1;
    if (!strncmp(at, "qreg q[", 7)) return strtoull(at + 7, NULL, 10) <= c->session->qubits;
    if (!strncmp(at, "qubit[", 6)) return strtoull(at + 6, NULL, 10) <= c->session->qubits;
    if (!strncmp(at, "creg c[", 7) || !strncmp(at, "bit[", 4)) {
        c->bits = strtoull(strchr(at, '[') + 1, NULL, 10);
        return c->bits <= 64;
    }
    const char *arrow = strstr(at, "->"), *assigned = strchr(at, '=');
    if (!strncmp(at, "measure ", 8)) return arrow && measure(c, skip(arrow + 2), at + 8);
    if (assigned) return !strncmp(skip(assigned + 1), "measure ", 8) && measure(c, at, skip(assigned + 1) + 8);
    const size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789");
    snprintf(name, sizeof name, "%.*s", (int)len, at);
    at = skip(at + len);
    if (*at == '(') {
        do {
            if (np == 4) return 0;
            parameters[np++] = strtod(at + 1, &end);
            if (end == at + 1) return 0;
            at = skip(end);
        } while (*at == ',');
        if (*at++ != ')') return 0;
    }
    do {
        if (nq == 2 || !(at = operand(c, at + (*at == ','), &qubits[nq++]))) return 0;
    } while (*at == ',');
    int is_known = !strcmp(name, "s") || !strcmp(name, "h"); /* the words of an iswap of two cx */
    for (size_t i = 0; i < c->session->operations_len; i++)
        is_known |= !strcmp(c->session->operations[i].name, name);
    return *at == 0 && is_known && gate(c, name, parameters, np, qubits, nq);
}

/* Finds the probabilities of a program's keys; 0 when the device refuses it. */
static int compile(const Session *session, Program *program, size_t shots) {
    Circuit c = {.session = session, .state = {1}};
    memset(c.measured, -1, sizeof c.measured);
    char *copy = strdup(program->text), *rest = copy;
    int is_good = copy != NULL;
    for (char *line; is_good && (line = strsep(&rest, ";")) != NULL;) {
        line = (char *)skip(line);
        for (size_t len = strlen(line); len && isspace((unsigned char)line[len - 1]);) line[--len] = 0;
        if (!(is_good = statement(&c, line))) say("the program has '%s', which this device refuses", line);
    }
    free(copy);
    for (size_t bit = 0; bit < c.bits; bit++) is_good = is_good && c.measured[bit] >= 0;
    if (!is_good || c.bits > MAX_QUBITS) return 0;
    for (size_t outcome = 0; outcome < (size_t)1 << session->qubits; outcome++) {
        size_t key = 0;
        for (size_t bit = 0; bit < c.bits; bit++) key |= (outcome >> c.measured[bit] & 1) << bit;
        program->probabilities[key] += creal(c.state[outcome] * conj(c.state[outcome]));
    }
    program->width = c.bits;
    program->shots_left = shots;
    return 1;
}

/* Does the next shots of a program. */
static void sample(Program *program) {
    size_t last = 0;
    for (size_t key = 0; key < (size_t)1 << program->width; key++)
        if (program->probabilities[key] > 1e-12) last = key;
    for (size_t n = 0; n < SLICE && program->shots_left; n++, program->shots_left--) {
        double left = random_unit();
        size_t key = 0;
        while (key < last && (left -= program->probabilities[key]) >= 0) key++;
        program->counts[key]++;
    }
}

/* ---- The interface: device and session ---- */

EXPORT int NAME(initialize)(void) {
    ENTER("initialize", NULL, NULL, 0);
    if (uses++) return OK;
    owner = gettid();
    random_state = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
    life(NULL, NULL, "initialize");
    return done();
}

EXPORT int NAME(finalize)(void) {
    ENTER("finalize", NULL, NULL, 0);
    life(NULL, NULL, "finalize");
    if (--uses == 0) owner = 0;
    return done();
}

EXPORT int NAME(session_alloc)(Session **session) {
    ENTER("alloc", NULL, NULL, 0);
    if (!session || !uses) return INVALID;
    *session = calloc(1, sizeof **session);
    return *session ? done() : NO_MEMORY;
}

EXPORT int NAME(session_set_parameter)(Session *session, int parameter, size_t size, const void *value) {
    const int is_text_parameter = parameter == 0 || parameter == 1 || parameter == CUSTOM1 || parameter == CUSTOM1 + 1;
    ENTER("set_session", session, NULL, parameter);
    if (!session) return INVALID;
    if (session->is_ready) return BAD_STATE;
    if (!is_text_parameter && (parameter < CUSTOM1 || parameter > CUSTOM5)) return UNSUPPORTED;
    if (!value) return OK;
    if (is_text_parameter && !is_text(value, size)) return INVALID;
    /* CUSTOM3 is a uint64_t and CUSTOM4 a double; CUSTOM5 is any bytes. */
    if ((parameter == CUSTOM1 + 2 || parameter == CUSTOM1 + 3) && size != 8) return INVALID;
    if (parameter == 1) snprintf(session->token, TEXT, "%s", (const char *)value);
    if (parameter == CUSTOM1) snprintf(session->faults, TEXT, "%s", (const char *)value);
    if (asked(session, NULL, "life", NULL)) {
        fprintf(stderr, "faulty: session parameter %d has %zu bytes:", parameter, size);
        for (size_t i = 0; i < size; i++) fprintf(stderr, " %02x", ((const unsigned char *)value)[i]);
        fputc('\n', stderr);
    }
    return done();
}

EXPORT int NAME(session_init)(Session *session) {
    char token[TEXT];
    ENTER("init", session, NULL, 0);
    if (!session) return INVALID;
    if (session->is_ready) return BAD_STATE;
    if (asked(session, NULL, "token", token) && strcmp(token, session->token)) return DENIED;
    describe(session);
    session->is_ready = 1;
    life(session, NULL, "session init");
    return done();
}

EXPORT void NAME(session_free)(Session *session) {
    if (session) life(session, NULL, "session free");
    free(session);
}

EXPORT int NAME(session_query_device_property)(Session *session, int property, size_t size, void *value, size_t *size_ret) {
    char text[TEXT];
    ENTER("session_query", session, NULL, property);
    if (!session || (!value && !size_ret)) return INVALID;
    if (!session->is_ready) return BAD_STATE;
    const Site *handles[4 * MAX_SITES];
    size_t len = 0;
    switch (property) {
    case 0: return answer_text("faulty device", size, value, size_ret);
    case 1: return answer_text("0.1", size, value, size_ret);
    case 2: {
        const int status = (int)number(session, NULL, "device_status", 1);
        return answer(&status, sizeof status, size, value, size_ret);
    }
    case 3:
        return answer_text(asked(session, NULL, "version", text) ? text : LIBRARY_VERSION, size, value, size_ret);
    case 4: len = (size_t)number(session, NULL, "many", (long)session->qubits);
        return answer(&len, sizeof len, size, value, size_ret);
    case 5:
        if (asked(session, NULL, "no_sites", NULL)) return answer(NULL, 0, size, value, size_ret);
        for (size_t i = 0; i < session->sites_len; i++) handles[len++] = &session->sites[i];
        return answer(handles, len * sizeof *handles, size, value, size_ret);
    case 6: {
        const Operation *operations[16];
        for (size_t i = 0; i < session->operations_len; i++) operations[len++] = &session->operations[i];
        return answer(operations, len * sizeof *operations, size, value, size_ret);
    }
    case 7:
        if (asked(session, NULL, "no_map", NULL)) return UNSUPPORTED;
        len = couplings(session, handles) - (asked(session, NULL, "odd_map", NULL) != 0);
        return answer(handles, len * sizeof *handles, size, value, size_ret);
    case 15: {
        int formats[8] = {QASM3, QASM2};
        len = 2;
        if (asked(session, NULL, "formats", text)) {
            len = 0;
            for (char *rest = text, *one; len < 8 && (one = strsep(&rest, ",")) != NULL;) formats[len++] = atoi(one);
        }
        if (asked(session, NULL, "no_formats", NULL)) len = 0;
        return answer(formats, len * sizeof *formats, size, value, size_ret);
    }
    case 17: return answer(&len, sizeof len, size, value, size_ret);
    default: return UNSUPPORTED;
    }
}

EXPORT int NAME(session_query_site_property)(Session *session, const Site *site, int property, size_t size, void *value,
                                             size_t *size_ret) {
    ENTER("site_query", session, NULL, property);
    if (!session || !site) return INVALID;
    if (property == 0) return answer(&site->index, sizeof site->index, size, value, size_ret);
    if (property == 3) return answer_text(site->name, size, value, size_ret);
    if (property == 7 && site->is_zone) return answer(&(_Bool){1}, sizeof(_Bool), size, value, size_ret);
    return UNSUPPORTED;
}

EXPORT int NAME(session_query_operation_property)(Session *session, const Operation *operation, size_t sites_len,
                                                  const Site *const *sites, size_t parameters_len, const double *parameters,
                                                  int property, size_t size, void *value, size_t *size_ret) {
    const Site *handles[4 * MAX_SITES];
    size_t len = 0;
    (void)sites_len, (void)sites, (void)parameters_len, (void)parameters;
    ENTER("operation_query", session, NULL, property);
    if (!session || !operation) return INVALID;
    if (property == 0) return answer_text(operation->name, size, value, size_ret);
    if (property == 1) return answer(&operation->qubits, sizeof(size_t), size, value, size_ret);
    if (property == 2) return answer(&operation->parameters, sizeof(size_t), size, value, size_ret);
    if (property != 9) return UNSUPPORTED;
    if (operation->qubits == 2) len = couplings(session, handles);
    else
        for (size_t q = 0; q < session->qubits; q++) handles[len++] = site_of_qubit(session, q);
    return answer(handles, len * sizeof *handles, size, value, size_ret);
}

/* ---- The interface: jobs ---- */

EXPORT int NAME(session_create_device_job)(Session *session, Job **job) {
    ENTER("create_job", session, NULL, 0);
    if (!session || !job) return INVALID;
    if (!session->is_ready) return BAD_STATE;
    Job *made = calloc(1, sizeof *made);
    if (!made || !(made->programs = calloc(MAX_PROGRAMS, sizeof *made->programs))) return NO_MEMORY;
    made->session = session;
    made->format = -1;
    made->number = ++jobs_created;
    snprintf(made->id, sizeof made->id, "faulty-%d-%zu", (int)getpid(), made->number);
    *job = made;
    return done();
}

EXPORT int NAME(job_query_property)(Job *job, int property, size_t size, void *value, size_t *size_ret) {
    if (!job) return INVALID;
    ENTER("job_query", job->session, job, property);
    const size_t ahead = job->status == QUEUED ? 3 : 0;
    if (property == 0) return answer_text(job->id, size, value, size_ret);
    if (property == 1) return answer(&job->format, sizeof job->format, size, value, size_ret);
    if (property == 3) return answer(&job->shots, sizeof job->shots, size, value, size_ret);
    if (property == 4) return answer(&ahead, sizeof ahead, size, value, size_ret);
#if QDMI_MINOR == 4
    if (property == 5) return answer(&job->programs_len, sizeof job->programs_len, size, value, size_ret);
#endif
    return UNSUPPORTED;
}

static int keep(Job *job, size_t index, const void *text, size_t size) {
    if (!is_text(text, size)) return INVALID;
    free(job->programs[index].text);
    job->programs[index].text = strdup(text);
    job->programs[index].len = size;
    return job->programs[index].text ? OK : NO_MEMORY;
}

static int takes_format(const Job *job, int format) {
    char text[TEXT];
    if (asked(job->session, job, "no_formats", NULL)) return 0;
    if (!asked(job->session, job, "formats", text)) return format == QASM2 || format == QASM3;
    for (char *rest = text, *one; (one = strsep(&rest, ",")) != NULL;)
        if (atoi(one) == format) return 1;
    return 0;
}

EXPORT int NAME(job_set_parameter)(Job *job, int parameter, size_t size, const void *value) {
    if (!job) return INVALID;
    ENTER("set_job", job->session, job, parameter);
    if (job->status != CREATED) return BAD_STATE;
    if (parameter == 2) {
        if (value && size != sizeof job->shots) return INVALID;
        if (value) memcpy(&job->shots, value, size);
        return OK;
    }
    if (parameter == CUSTOM1) {
        if (value && !is_text(value, size)) return INVALID;
        if (value) snprintf(job->faults, TEXT, "%s", (const char *)value);
        return OK;
    }
    /* CUSTOM2 is a uint64_t. */
    if (parameter == CUSTOM1 + 1) return value && size != 8 ? INVALID : done();
#if QDMI_MINOR == 3
    if (parameter == 0) {
        if (!value) return OK;
        if (size != sizeof job->format) return INVALID;
        if (!takes_format(job, *(const int *)value)) return UNSUPPORTED;
        job->format = *(const int *)value;
        return OK;
    }
    if (parameter == 1) {
        if (!value) return OK;
        job->programs_len = 1;
        return keep(job, 0, value, size);
    }
#endif
    return UNSUPPORTED;
}

static int end_of(Job *job, int status) {
    job->status = status;
    for (size_t i = 0; i < job->programs_len; i++) job->programs[i].status = status;
    return OK;
}

EXPORT int NAME(job_submit)(Job *job) {
    char text[TEXT];
    if (!job) return INVALID;
    ENTER("submit", job->session, job, 0);
    if (job->status != CREATED || job->programs_len == 0) return BAD_STATE;
    /* After a refused format a library of this interface may still say that all is well. */
    if (job->format < 0) return end_of(job, DONE);
    if (asked(job->session, job, "print", text)) {
        for (char *at = text; *at; at++) *at = *at == '_' ? ' ' : *at;
        say("%s", text);
    }
    const int is_deaf = asked(job->session, job, "block_deaf", NULL);
    const double until = now() + (double)number(job->session, job, is_deaf ? "block_deaf" : "block", 0);
    job->is_in_submit = 1;
    if (until > now()) say("%s", "submit blocks");
    while (now() < until && (is_deaf || !job->is_cancelled)) usleep(1000);
    job->is_in_submit = 0;
    job->submitted = now();
    job->status = SUBMITTED;
    return done();
}

/* Brings a job to where the clock says that it is. */
static void advance(Job *job) {
    const Session *session = job->session;
    if (job->status == CREATED || job->status >= DONE) return;
    if (job->is_cancelled && !asked(session, job, "cancel_ignored", NULL)) {
        end_of(job, CANCELLED);
        return;
    }
    const double age = now() - job->submitted, queued = (double)number(session, job, "queue_ms", 0);
    const double ran = queued + (double)number(session, job, "run_ms", 0);
    job->status = age < queued ? QUEUED : RUNNING;
    if (age < ran || age < queued || asked(session, job, "never", NULL)) return;
    const long failing = number(session, job, "part_fails", -1);
    int last = DONE;
    for (size_t i = 0; i < job->programs_len; i++) {
        Program *program = &job->programs[i];
        if (program->status < RUNNING)
            program->status = (long)i != failing && compile(session, program, job->shots) ? RUNNING : FAILED;
        if (program->status == RUNNING) sample(program);
        if (program->status == RUNNING && program->shots_left == 0) program->status = DONE;
        if (program->status == RUNNING) last = RUNNING;
        if (program->status == FAILED && last == DONE) last = FAILED;
    }
    job->status = last;
    if (last == RUNNING) return;
    if (asked(session, job, "ends", NULL)) end_of(job, (int)number(session, job, "ends", DONE));
    if (job->status == FAILED) say("the job %s failed: out of calibration", job->id);
}

EXPORT int NAME(job_check)(Job *job, int *status) {
    if (!job || !status) return INVALID;
    ENTER("check", job->session, job, 0);
    if ((long)job->failed_checks < number(job->session, job, "check_fails", 0)) {
        job->failed_checks++;
        say("%s", "the network is away");
        return FATAL;
    }
    advance(job);
    *status = job->status;
    return done();
}

EXPORT int NAME(job_wait)(Job *job, size_t seconds) {
    if (!job) return INVALID;
    ENTER("wait", job->session, job, 0);
    const double until = now() + (double)seconds * 1e3;
    for (advance(job); job->status < DONE; advance(job)) {
        if (seconds && now() > until) return -11;
        usleep(1000);
    }
    return done();
}

EXPORT int NAME(job_cancel)(Job *job) {
    if (!job) return INVALID;
    ENTER("cancel", job->session, job, 0);
    if (job->status >= DONE) return INVALID;
    life(job->session, job, "job cancel");
    job->is_cancelled = 1;
    if (asked(job->session, job, "cancel_blocks", NULL))
        for (;;) usleep(100000);
    return done();
}

EXPORT void NAME(job_free)(Job *job) {
    if (!job) return;
    life(job->session, job, "job free");
    for (size_t i = 0; i < MAX_PROGRAMS; i++) free(job->programs[i].text);
    free(job->programs);
    free(job);
}

static size_t bits(const Program *program, size_t key, int is_left, char *out) {
    for (size_t bit = 0; bit < program->width; bit++)
        out[is_left ? bit : program->width - 1 - bit] = (char)('0' + (key >> bit & 1));
    out[program->width] = 0;
    return program->width;
}

/* The outcome of each shot, in the order of the keys. */
static int answer_shots(const Program *program, int is_left, size_t size, void *value, size_t *size_ret) {
    size_t shots = 0, at = 0;
    for (size_t key = 0; key < (size_t)1 << program->width; key++) shots += program->counts[key];
    char *text = malloc(shots * (program->width + 1) + 1);
    if (!text) return NO_MEMORY;
    for (size_t key = 0; key < (size_t)1 << program->width; key++)
        for (size_t n = 0; n < program->counts[key]; n++) {
            at += bits(program, key, is_left, text + at);
            text[at++] = ',';
        }
    text[at ? at - 1 : 0] = 0;
    const int status = answer_text(text, size, value, size_ret);
    free(text);
    return status;
}

static int results(Job *job, size_t index, int result, size_t size, void *value, size_t *size_ret) {
    enum { ALL = 1u << MAX_QUBITS };
    const Session *session = job->session;
    char order[TEXT] = "";
    size_t keys[ALL + 1], keys_len = 0;
    if (index >= job->programs_len) return OUT_OF_RANGE;
    const Program *program = &job->programs[index];
    if (program->status != DONE || asked(session, job, "no_results", NULL)) return BAD_STATE;
    if (result < 0 || result > 2) return UNSUPPORTED;
    if (asked(session, job, "size0", NULL) || job->format < 0) return answer(NULL, 0, size, value, size_ret);
    if (asked(session, job, "huge", NULL)) {
        if (size_ret) *size_ret = (size_t)1 << 40;
        return value ? FATAL : OK;
    }
    asked(session, job, "order", order);
    const int is_left = !strcmp(order, "left");
    if (result == 0) return answer_shots(program, is_left, size, value, size_ret);
    if (asked(session, job, "only_shots", NULL)) return UNSUPPORTED;
    for (size_t key = 0; key < ALL; key++)
        if (program->counts[key]) keys[keys_len++] = key;
    const size_t different = keys_len;
    if (asked(session, job, "twice", NULL)) keys[keys_len++] = keys[0];
    if (result == 2) {
        size_t values[ALL + 1];
        for (size_t i = 0; i < keys_len; i++) values[i] = i < different ? program->counts[keys[i]] : 0;
        values[0] += (size_t)number(session, job, "sum", 0);
        if (asked(session, job, "overflow", NULL)) values[0] = SIZE_MAX - 1;
        if (asked(session, job, "few_values", NULL)) keys_len--;
        const size_t less = asked(session, job, "odd_values", NULL) ? 3 : 0;
        return answer(values, keys_len * sizeof *values - less, size, value, size_ret);
    }
    char text[(ALL + 1) * (MAX_QUBITS + 3)] = "";
    for (size_t i = 0, at = 0; i < keys_len; i++) {
        char key[MAX_QUBITS + 2];
        size_t width = bits(program, keys[i], is_left, key);
        if (asked(session, job, "wide", NULL)) key[width++] = '0';
        if (asked(session, job, "narrow", NULL) && width) width--;
        if (asked(session, job, "letters", NULL)) *key = 'x';
        if (asked(session, job, "not_text", NULL)) *key = (char)0xff;
        at += (size_t)sprintf(text + at, "%s%.*s", i ? "," : "", (int)width, key);
    }
    size_t len = strlen(text) + !asked(session, job, "no_nul", NULL);
    if (asked(session, job, "grows", NULL)) {
        if (value) {
            if (size_ret) *size_ret = len;
            return INVALID;
        }
        len /= 2;
    }
    return answer(text, len, size, value, size_ret);
}

#if QDMI_MINOR == 4

EXPORT int NAME(job_get_results)(Job *job, size_t index, int result, size_t size, void *value, size_t *size_ret) {
    if (!job) return INVALID;
    ENTER("results", job->session, job, result);
    return results(job, index, result, size, value, size_ret);
}

EXPORT int NAME(job_set_programs)(Job *job, int format, size_t count, const size_t *sizes, const void *const *programs) {
    if (!job || count == 0) return INVALID;
    ENTER("set_programs", job->session, job, format);
    if (job->status != CREATED) return BAD_STATE;
    if (!takes_format(job, format)) return UNSUPPORTED;
    if (count > MAX_PROGRAMS || (count > 1 && asked(job->session, job, "lists", NULL))) return UNSUPPORTED;
    if (!programs) return OK;
    for (size_t i = 0; i < count; i++)
        if (!programs[i] || !is_text(programs[i], sizes[i])) return INVALID;
    for (size_t i = 0; i < count; i++)
        if (keep(job, i, programs[i], sizes[i]) != OK) return NO_MEMORY;
    job->programs_len = count;
    job->format = format;
    return done();
}

EXPORT int NAME(job_get_program)(Job *job, size_t index, size_t size, void *value, size_t *size_ret) {
    if (!job) return INVALID;
    if (index >= job->programs_len) return OUT_OF_RANGE;
    return answer(job->programs[index].text, job->programs[index].len, size, value, size_ret);
}

EXPORT int NAME(job_get_program_status)(Job *job, size_t index, int *status) {
    if (!job || !status) return INVALID;
    ENTER("program_status", job->session, job, (int)index);
    if (index >= job->programs_len) return OUT_OF_RANGE;
    *status = job->programs[index].status;
    return done();
}

/* A job of a former process: the device still has it, and it can be cancelled. */
EXPORT int NAME(session_retrieve_device_job_by_id)(Session *session, const char *id, Job **job) {
    ENTER("retrieve", session, NULL, 0);
    if (!id || strncmp(id, "faulty-", 7)) return NOT_FOUND;
    const int status = NAME(session_create_device_job)(session, job);
    if (status != OK) return status;
    snprintf((*job)->id, sizeof (*job)->id, "%s", id);
    (*job)->status = RUNNING;
    (*job)->submitted = now();
    say("the job %s is retrieved", id);
    return done();
}

#else

EXPORT int NAME(job_get_results)(Job *job, int result, size_t size, void *value, size_t *size_ret) {
    if (!job) return INVALID;
    ENTER("results", job->session, job, result);
    return results(job, 0, result, size, value, size_ret);
}

#endif
