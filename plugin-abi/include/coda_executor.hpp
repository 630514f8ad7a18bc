// coda_executor.hpp - what every plugin in C++ needs on top of coda_executor.h: exceptions that become errors.
//
// Header only, C++17. Nothing here is part of the binary interface.
#ifndef CODA_EXECUTOR_HPP
#define CODA_EXECUTOR_HPP

#include "coda_executor.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace coda {

// A copy of lent text.
inline std::string text(coda_str s) { return s.len ? std::string(s.ptr, s.len) : std::string(); }

// Lends a string for as long as it lives unchanged.
inline coda_str lend(const std::string &s) { return {s.data(), s.size()}; }

// Throw it to end a call with an error of this code and stage (CODA_ERROR_..., CODA_STAGE_...).
struct Failure : std::runtime_error {
    Failure(uint32_t code_, uint32_t stage_, const std::string &what, bool retryable_ = false)
        : std::runtime_error(what), code(code_), stage(stage_), retryable(retryable_) {}
    uint32_t code, stage;
    bool retryable;
};

// Runs the body of a function of the table; what it throws becomes the reply for `index` (CODA_WHOLE_CALL where
// there is none). An exception that isn't a Failure counts as a bug of the plugin.
template <class Body> void guard(const coda_reply *reply, size_t index, uint32_t stage, Body body) noexcept {
    const auto fail = [&](uint32_t code, uint32_t at, bool retryable, const char *what) {
        const coda_error error{sizeof(coda_error), code, at, retryable ? 1u : 0u, 0, coda_str_of(what)};
        reply->error(reply->ctx, index, &error);
    };
    try {
        body();
    } catch (const Failure &e) {
        fail(e.code, e.stage, e.retryable, e.what());
    } catch (const std::bad_alloc &) {
        fail(CODA_ERROR_RESOURCES, stage, false, "out of memory");
    } catch (const std::exception &e) {
        fail(CODA_ERROR_PANIC, stage, false, e.what());
    } catch (...) {
        fail(CODA_ERROR_PANIC, stage, false, "an exception of unknown type");
    }
}

} // namespace coda

#endif // CODA_EXECUTOR_HPP
