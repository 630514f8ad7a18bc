/*
 * Runs a Bell circuit on a QDMI device library with nothing between for each line that it reads, and prints the microseconds
 * from the creation of the job to its counts. Arguments: library, prefix of its functions, shots.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char PROGRAM[] = "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nbit[2] c;\n"
                              "ry(1.5707963267948966) $0;\nry(-1.5707963267948966) $1;\ncz $0, $1;\n"
                              "ry(1.5707963267948966) $1;\nc[0] = measure $0;\nc[1] = measure $1;\n";
static void *library;
static const char *prefix;

static void *find(const char *name) {
    char symbol[256];
    snprintf(symbol, sizeof symbol, "%s_QDMI_device_%s", prefix, name);
    return dlsym(library, symbol);
}

static void *function(const char *name) {
    void *found = find(name);
    if (!found) {
        fprintf(stderr, "the library has no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(int status, const char *call) {
    if (status != 0) {
        fprintf(stderr, "the library answered %d to %s\n", status, call);
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    prefix = argv[2];
    int (*initialize)(void) = function("initialize"), (*finalize)(void) = function("finalize");
    int (*alloc)(void **) = function("session_alloc"), (*init)(void *) = function("session_init");
    int (*create)(void *, void **) = function("session_create_device_job");
    int (*set)(void *, int, size_t, const void *) = function("job_set_parameter");
    int (*set_programs)(void *, int, size_t, const size_t *, const void *const *) = find("job_set_programs");
    int (*submit)(void *) = function("job_submit"), (*state)(void *, int *) = function("job_check");
    int (*wait)(void *, size_t) = function("job_wait");
    void *get_results = function("job_get_results");
    int (*old_results)(void *, int, size_t, void *, size_t *) = get_results;
    int (*new_results)(void *, size_t, int, size_t, void *, size_t *) = get_results;
    void (*free_job)(void *) = function("job_free"), (*free_session)(void *) = function("session_free");

    void *session, *job;
    check(initialize(), "initialize");
    check(alloc(&session), "session_alloc");
    check(init(session), "session_init");
    const size_t shots = strtoull(argv[3], NULL, 10), size = sizeof PROGRAM;
    const void *const programs[] = {PROGRAM};
    const int qasm3 = 1;
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        char results[2][256];
        const double start = now();
        check(create(session, &job), "create_device_job");
        if (set_programs) {
            check(set_programs(job, qasm3, 1, &size, programs), "job_set_programs");
        } else {
            check(set(job, 0, sizeof qasm3, &qasm3), "the format");
            check(set(job, 1, size, PROGRAM), "the program");
        }
        check(set(job, 2, sizeof shots, &shots), "the shots");
        check(submit(job), "job_submit");
        check(wait(job, 0), "job_wait");
        int status = -1;
        check(state(job, &status), "job_check");
        if (status != 4) return fprintf(stderr, "the job ended as %d\n", status), 1;
        for (int i = 0; i < 2; i++) {
            size_t length = 0;
            void *no_buffer = NULL;
            check(set_programs ? new_results(job, 0, i + 1, 0, no_buffer, &length) : old_results(job, i + 1, 0, no_buffer, &length),
                  "the size of results");
            if (length > sizeof results[i]) return fprintf(stderr, "%zu bytes of results\n", length), 1;
            check(set_programs ? new_results(job, 0, i + 1, length, results[i], NULL) : old_results(job, i + 1, length, results[i], NULL),
                  "results");
        }
        free_job(job);
        printf("%.1f\n", now() - start);
        fflush(stdout);
    }
    free_session(session);
    check(finalize(), "finalize");
    return 0;
}
