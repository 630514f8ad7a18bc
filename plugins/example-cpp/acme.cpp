// Example of a plugin in C++17: the control stack of an imaginary "Acme" device with up to ten qubits in a line.
// ../example-c/toy_device.h stands for the hardware; replace it by what reaches yours. coda::guard catches
// every exception, since none may reach the host. Build it by
//
//     c++ -std=c++17 -shared -fPIC -O2 -o libacme.so acme.cpp
#include "../example-c/toy_device.h"
#include "coda_executor.hpp"

#include <map>
#include <mutex>
#include <random>

CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, "Acme", "acme-example-cpp", "1.0.0", "create_executor")

namespace {

// The host checks device.yaml against it first, so that the constructor may rely on it.
const char *const SCHEMA = R"({
    "type": "object", "required": ["host", "port"], "additionalProperties": false,
    "properties": {
        "host": {"type": "string", "minLength": 1, "description": "Where the control stack listens"},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "Its TCP port"},
        "shot_us": {"type": "integer", "minimum": 0, "maximum": 4294967295, "description": "Time of one shot"},
        "token": {"type": "string", "writeOnly": true, "description": "The control stack's access token"}
    }
})";

class Acme {
  public:
    explicit Acme(const coda_create &request) : num_qubits(request.num_qubits) {
        if (num_qubits < 1 || num_qubits > TOY_MAX_QUBITS)
            throw coda::Failure(CODA_ERROR_CONFIG, CODA_STAGE_CREATE, "this device has 1 to 10 qubits");
        shot_us = toy_number(request.config_text, "shot_us", 200);
        request.host->log(request.host->ctx, CODA_LOG_INFO, coda_str_of("connected"));
        request.host->gauge(request.host->ctx, coda_str_of("fridge_kelvin"), 0.012);
    }

    void device(const coda_reply &reply) const {
        const uint16_t targets[] = {CODA_TARGET_CZ};
        std::vector<coda_edge> line;
        for (unsigned q = 1; q < num_qubits; q++) line.push_back({uint16_t(q - 1), uint16_t(q)});
        const coda_device d{sizeof(coda_device), coda_str_of("acme-example"), num_qubits, 1, 0, CODA_CONNECTIVITY_UNDIRECTED,
                            CODA_HOOK_CANCEL, 0, targets, 1, line.data(), line.size(), 0, 0};
        reply.device(reply.ctx, &d);
    }

    void run(const coda_job &job, const coda_reply &reply) {
        const Entered entered(*this, coda::text(job.job_id));
        const coda_program &p = *job.program;
        if (p.num_qubits > num_qubits) throw coda::Failure(CODA_ERROR_UNSUPPORTED, CODA_STAGE_COMPILE, "too many qubits");
        toy_qubits qubits;
        toy_zero(&qubits, p.num_qubits, (uint64_t(random()) << 32) | random());
        for (size_t i = 0; i < p.gates_len; i++)
            if (!toy_apply(&qubits, &p.gates[i]))
                throw coda::Failure(CODA_ERROR_UNSUPPORTED, CODA_STAGE_COMPILE, "this device has no gate " + std::to_string(i));
        toy_prepare(&qubits);
        std::vector<int64_t> seen(qubits.len);
        for (uint32_t shot = 0; shot < job.shots; shot++) {
            if (shot % 4096 == 0) {
                job.host->progress(job.host->ctx, shot, job.shots);
                if (cancelled() || job.host->is_cancelled(job.host->ctx))
                    throw coda::Failure(CODA_ERROR_CANCELLED, CODA_STAGE_RUN, "ended because it was cancelled");
            }
            seen[toy_measure(&qubits)]++;
        }
        std::map<std::string, int64_t> by_key; // results that differ in unmeasured qubits share a key
        for (size_t i = 0; i < seen.size(); i++) {
            if (!seen[i]) continue;
            std::string key;
            for (size_t k = 0; k < p.measurements_len; k++) key += (i >> p.measurements[k] & 1) ? '1' : '0';
            by_key[key] += seen[i];
        }
        std::vector<coda_count> counts;
        for (const auto &[key, n] : by_key) counts.push_back({coda::lend(key), n});
        const coda_outcome outcome{sizeof(coda_outcome), counts.data(), counts.size(), job.shots * shot_us / 1e3, job.shots, 1, 1};
        reply.outcome(reply.ctx, 0, &outcome);
    }

    void cancel(const std::string &id) {
        const std::lock_guard<std::mutex> hold(lock);
        if (!id.empty() && id == running) stop = true; // an id that isn't running is ignored
    }

  private:
    // Which job runs, for the length of its run.
    struct Entered {
        Entered(Acme &a, const std::string &id) : acme(a) { set(id); }
        ~Entered() { set(std::string()); }
        void set(const std::string &id) {
            const std::lock_guard<std::mutex> hold(acme.lock);
            acme.running = id, acme.stop = false;
        }
        Acme &acme;
    };

    bool cancelled() {
        const std::lock_guard<std::mutex> hold(lock);
        return stop;
    }

    uint32_t num_qubits;
    double shot_us;
    std::random_device random;
    std::mutex lock;
    std::string running;
    bool stop = false;
};

Acme &acme(void *self) { return *static_cast<Acme *>(self); }

void *create(const coda_create *request, const coda_reply *reply) {
    void *made = nullptr;
    coda::guard(reply, CODA_WHOLE_CALL, CODA_STAGE_CREATE, [&] { made = new Acme(*request); });
    return made;
}
void device(void *self, const coda_reply *reply) {
    coda::guard(reply, CODA_WHOLE_CALL, CODA_STAGE_DESCRIBE, [&] { acme(self).device(*reply); });
}
void run(void *self, const coda_job *job, const coda_reply *reply) {
    coda::guard(reply, 0, CODA_STAGE_RUN, [&] { acme(self).run(*job, *reply); });
}
void cancel(void *self, const coda_str *id, const coda_reply *reply) {
    coda::guard(reply, CODA_WHOLE_CALL, CODA_STAGE_CANCEL, [&] { acme(self).cancel(coda::text(*id)); });
}
void destroy(void *self, const coda_reply *reply) {
    coda::guard(reply, CODA_WHOLE_CALL, CODA_STAGE_SHUTDOWN, [&] { delete &acme(self); });
}
void config_schema(const coda_str *, const coda_reply *reply) { reply->schema(reply->ctx, coda_str_of(SCHEMA)); }

const coda_executor_api API = {sizeof(coda_executor_api), CODA_API_MAJOR, CODA_API_MINOR, 0, create, device, run, nullptr,
                               cancel, nullptr, destroy, nullptr, config_schema};

} // namespace

const coda_executor_api *coda_executor_entry(void) { return &API; }
