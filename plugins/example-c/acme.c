/*
 * Example of a plugin in C: the control stack of an imaginary "Acme" device with up to ten qubits in a line.
 * toy_device.h stands for the hardware; replace it by what reaches yours. The same device in Rust and C++:
 * example-rust, example-cpp. Build it by
 *
 *     cc -std=c99 -shared -fPIC -O2 -o libacme.so acme.c -lm -lpthread
 */
#define _POSIX_C_SOURCE 200809L
#include "toy_device.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, "Acme", "acme-example-c", "1.0.0", "create_executor")

/* The host checks device.yaml against it first, so that create may rely on it. */
static const char SCHEMA[] =
    "{\"type\": \"object\", \"required\": [\"host\", \"port\"], \"additionalProperties\": false, \"properties\": {"
    "\"host\": {\"type\": \"string\", \"minLength\": 1, \"description\": \"Where the control stack listens\"},"
    "\"port\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 65535, \"description\": \"Its TCP port\"},"
    "\"shot_us\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 4294967295, \"description\": \"Time of one shot\"},"
    "\"token\": {\"type\": \"string\", \"writeOnly\": true, \"description\": \"The control stack's access token\"}}}";

typedef struct acme {
    uint32_t num_qubits;
    double shot_us;
    pthread_mutex_t lock;
    char running[256]; /* the job in run, not terminated */
    size_t running_len;
    int cancelled;
    /* One slot, so one of each. */
    toy_qubits qubits;
    int64_t seen[1 << TOY_MAX_QUBITS];
    coda_count counts[1 << TOY_MAX_QUBITS];
} acme;

static void *create(const coda_create *request, const coda_reply *reply) {
    acme *self = (acme *)calloc(1, sizeof *self);
    if (!self || request->num_qubits < 1 || request->num_qubits > TOY_MAX_QUBITS) {
        coda_fail(reply, CODA_WHOLE_CALL, CODA_ERROR_CONFIG, CODA_STAGE_CREATE, "this device has 1 to 10 qubits");
        free(self);
        return NULL;
    }
    self->num_qubits = request->num_qubits;
    self->shot_us = toy_number(request->config_text, "shot_us", 200);
    pthread_mutex_init(&self->lock, NULL);
    request->host->log(request->host->ctx, CODA_LOG_INFO, coda_str_of("connected"));
    request->host->gauge(request->host->ctx, coda_str_of("fridge_kelvin"), 0.012);
    return self;
}

static void device(void *self, const coda_reply *reply) {
    const uint16_t targets[] = {CODA_TARGET_CZ};
    coda_edge line[TOY_MAX_QUBITS];
    coda_device d = {sizeof d, {0, 0}, 0, 1, 0, CODA_CONNECTIVITY_UNDIRECTED, CODA_HOOK_CANCEL, 0, targets, 1, line, 0, 0, 0};
    d.name = coda_str_of("acme-example");
    d.num_qubits = ((acme *)self)->num_qubits;
    for (; d.edges_len + 1 < d.num_qubits; d.edges_len++)
        line[d.edges_len].a = (uint16_t)d.edges_len, line[d.edges_len].b = (uint16_t)(d.edges_len + 1);
    reply->device(reply->ctx, &d);
}

/* Which job runs; an empty id when none does. */
static void enter(acme *self, coda_str id) {
    pthread_mutex_lock(&self->lock);
    self->running_len = id.len < sizeof self->running ? id.len : sizeof self->running;
    if (id.len) memcpy(self->running, id.ptr, self->running_len);
    self->cancelled = 0;
    pthread_mutex_unlock(&self->lock);
}

static int cancelled(acme *self, const coda_job *job) {
    int answer;
    pthread_mutex_lock(&self->lock);
    answer = self->cancelled || job->host->is_cancelled(job->host->ctx);
    pthread_mutex_unlock(&self->lock);
    return answer;
}

static void measure(acme *self, const coda_job *job, const coda_reply *reply) {
    const coda_program *p = job->program;
    coda_outcome outcome = {sizeof outcome, self->counts, 0, job->shots * self->shot_us / 1e3, job->shots, 1, 1};
    size_t i, k, mask = 0, len = p->measurements_len;
    char *keys = (char *)malloc((len + 1) << TOY_MAX_QUBITS);
    toy_zero(&self->qubits, p->num_qubits, (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15) ^ self->qubits.random);
    for (i = 0; i < p->gates_len; i++)
        if (!toy_apply(&self->qubits, &p->gates[i])) {
            free(keys);
            coda_fail(reply, 0, CODA_ERROR_UNSUPPORTED, CODA_STAGE_COMPILE, "this device has no such gate");
            return;
        }
    for (k = 0; k < len; k++) mask |= (size_t)1 << p->measurements[k];
    toy_prepare(&self->qubits);
    memset(self->seen, 0, sizeof self->seen);
    for (i = 0; i < job->shots; i++) {
        if (i % 4096 == 0) job->host->progress(job->host->ctx, i, job->shots);
        if (i % 4096 == 0 && cancelled(self, job)) {
            free(keys);
            coda_fail(reply, 0, CODA_ERROR_CANCELLED, CODA_STAGE_RUN, "ended because it was cancelled");
            return;
        }
        self->seen[toy_measure(&self->qubits) & mask]++; /* results that differ elsewhere share a key */
    }
    for (i = 0; keys && i < self->qubits.len; i++) {
        char *key = keys + i * len;
        if (!self->seen[i]) continue;
        for (k = 0; k < len; k++) key[k] = (i >> p->measurements[k] & 1) ? '1' : '0';
        self->counts[outcome.counts_len].bits.ptr = key;
        self->counts[outcome.counts_len].bits.len = len;
        self->counts[outcome.counts_len++].count = self->seen[i];
    }
    if (keys) reply->outcome(reply->ctx, 0, &outcome);
    else coda_fail(reply, 0, CODA_ERROR_RESOURCES, CODA_STAGE_READOUT, "out of memory");
    free(keys);
}

static void run(void *self, const coda_job *job, const coda_reply *reply) {
    if (job->program->num_qubits > ((acme *)self)->num_qubits) {
        coda_fail(reply, 0, CODA_ERROR_UNSUPPORTED, CODA_STAGE_COMPILE, "the circuit has too many qubits");
        return;
    }
    enter((acme *)self, job->job_id);
    measure((acme *)self, job, reply);
    enter((acme *)self, coda_str_of(NULL));
}

static void cancel(void *self, const coda_str *id, const coda_reply *reply) {
    acme *a = (acme *)self;
    (void)reply;
    pthread_mutex_lock(&a->lock);
    if (a->running_len && a->running_len == id->len && memcmp(a->running, id->ptr, id->len) == 0) a->cancelled = 1;
    pthread_mutex_unlock(&a->lock);
}

static void destroy(void *self, const coda_reply *reply) {
    (void)reply;
    pthread_mutex_destroy(&((acme *)self)->lock);
    free(self);
}

static void config_schema(const coda_str *entry, const coda_reply *reply) {
    (void)entry;
    reply->schema(reply->ctx, coda_str_of(SCHEMA));
}

static const coda_executor_api API = {
    sizeof(coda_executor_api), CODA_API_MAJOR, CODA_API_MINOR, 0, create, device, run, NULL, cancel, NULL, destroy, NULL, config_schema};

const coda_executor_api *coda_executor_entry(void) { return &API; }
