// A plugin of the C door that misbehaves on purpose, to test how the host takes it. Never use it as an example.
//
// CODA_FAULTY_TABLE chooses what is wrong with the function table (null, small, major, no_run); the key `throw` of
// device.yaml names a function that lets a C++ exception escape (create, device, run, cancel, shutdown, destroy), and
// `silent: run` one that replies nothing, `late: run` one that answers when it is over, `twice: outcome` and `twice: error`
// one that answers twice. Everything else measures zeros. Built with FAULTY_ISOLATED it states that it needs a process of
// its own.
#include "coda_executor.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#ifdef FAULTY_ISOLATED
CODA_EXECUTOR_DESCRIPTOR_ISOLATED(CODA_KIND_TEST, "Coda", "coda-plugin-faulty-isolated", "1.0.0", "create_executor")
#else
CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, "Coda", "coda-plugin-faulty-cpp", "1.0.0", "create_executor")
#endif

namespace {

struct Faulty {
    std::string config;
    uint32_t num_qubits;
    bool has(const std::string &line) const { return ("\n" + config + "\n").find("\n" + line + "\n") != std::string::npos; }
    void may_throw(const char *function) const {
        if (has(std::string("throw: ") + function)) throw std::runtime_error(std::string("thrown out of ") + function);
    }
};

Faulty &faulty(void *self) { return *static_cast<Faulty *>(self); }

void *create(const coda_create *request, const coda_reply *) {
    auto *made = new Faulty{coda::text(request->config_text), request->num_qubits};
    made->may_throw("create");
    return made;
}

void device(void *self, const coda_reply *reply) {
    faulty(self).may_throw("device");
    const uint16_t targets[] = {CODA_TARGET_CZ};
    coda_device d{};
    d.size = sizeof d;
    d.name = coda_str_of("faulty-cpp");
    d.num_qubits = faulty(self).num_qubits;
    d.slots = 1;
    d.hooks = CODA_HOOK_CANCEL;
    d.targets = targets;
    d.targets_len = 1;
    reply->device(reply->ctx, &d);
}

void answer(const coda_reply *reply, const std::string &bits, uint32_t shots) {
    const coda_count count{coda::lend(bits), shots};
    const coda_outcome outcome{sizeof(coda_outcome), &count, 1, 1.0, 0, 1, 0};
    reply->outcome(reply->ctx, 0, &outcome);
}

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// A run that was cancelled answers when the next one is in the plugin, and goes on using what it was lent.
void answer_late(const coda_job *job, const coda_reply *reply) {
    const std::string ones(job->program->measurements_len, '1');
    const uint32_t shots = job->shots;
    while (!job->host->is_cancelled(job->host->ctx)) pause(5);
    std::thread([job, reply, ones, shots] {
        pause(300);
        job->host->progress(job->host->ctx, 1, 1);
        job->host->log(job->host->ctx, CODA_LOG_INFO, coda_str_of("said too late"));
        job->host->gauge(job->host->ctx, coda_str_of("too_late"), 1.0);
        answer(reply, ones, shots);
        coda_fail(reply, CODA_WHOLE_CALL, CODA_ERROR_OTHER, CODA_STAGE_RUN, "failed too late");
        std::fprintf(stderr, "all was said too late: %u qubits, cancelled %u\n", job->program->num_qubits,
                     job->host->is_cancelled(job->host->ctx));
    }).detach();
}

void run(void *self, const coda_job *job, const coda_reply *reply) {
    static std::atomic<int> runs{0};
    faulty(self).may_throw("run");
    if (faulty(self).has("silent: run")) return;
    if (faulty(self).has("late: run")) {
        if (runs++ == 0) return answer_late(job, reply);
        pause(800);
    }
    const std::string zeros(job->program->measurements_len, '0');
    answer(reply, zeros, job->shots);
    if (faulty(self).has("twice: outcome")) answer(reply, zeros, job->shots);
    if (faulty(self).has("twice: error")) coda_fail(reply, CODA_WHOLE_CALL, CODA_ERROR_OTHER, CODA_STAGE_RUN, "and yet");
}

void cancel(void *self, const coda_str *, const coda_reply *) { faulty(self).may_throw("cancel"); }
void shutdown(void *self, const coda_reply *) { faulty(self).may_throw("shutdown"); }

void destroy(void *self, const coda_reply *) {
    faulty(self).may_throw("destroy");
    delete &faulty(self);
}

coda_executor_api api = {sizeof(coda_executor_api), CODA_API_MAJOR, CODA_API_MINOR, 0, create, device, run, nullptr, cancel,
                         shutdown, destroy, nullptr, nullptr};

} // namespace

const coda_executor_api *coda_executor_entry(void) {
    const char *chosen = std::getenv("CODA_FAULTY_TABLE");
    const std::string wrong = chosen ? chosen : "";
    if (wrong == "null") return nullptr;
    if (wrong == "small") api.size = 16;
    if (wrong == "major") api.api_major = 9;
    if (wrong == "no_run") api.run = nullptr;
    return &api;
}
