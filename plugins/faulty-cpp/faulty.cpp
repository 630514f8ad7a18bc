// A plugin of the C door that misbehaves on purpose, to test how the host takes it. Never use it as an example.
//
// CODA_FAULTY_TABLE chooses what is wrong with the function table (null, small, major, no_run); the key `throw` of
// device.yaml names a function that lets a C++ exception escape (create, device, run, cancel, shutdown, destroy), and
// `silent: run` one that replies nothing. Everything else measures zeros.
#include "coda_executor.hpp"

#include <cstdlib>

CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, "Coda", "coda-plugin-faulty-cpp", "1.0.0", "create_executor")

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

void run(void *self, const coda_job *job, const coda_reply *reply) {
    faulty(self).may_throw("run");
    if (faulty(self).has("silent: run")) return;
    const std::string zeros(job->program->measurements_len, '0');
    const coda_count count{coda::lend(zeros), job->shots};
    const coda_outcome outcome{sizeof(coda_outcome), &count, 1, 1.0, 0, 1, 0};
    reply->outcome(reply->ctx, 0, &outcome);
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
