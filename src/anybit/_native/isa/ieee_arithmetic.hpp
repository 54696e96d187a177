// SPDX-License-Identifier: Apache-2.0
// Kernels need round-to-nearest-even and subnormals. Hosts may have changed either for the calling
// thread (a flush-to-zero option, a library built with fast math). This sets both for the duration
// of a call and restores them.
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace anybit {

class IeeeArithmetic {
 public:
#if defined(__SSE__) || defined(_M_X64)
  // Reading the register is much cheaper than writing it. It waits for all earlier arithmetic,
  // which takes as long as a small network: short calls leave exception flags set.
  explicit IeeeArithmetic(bool computes_little = false)
      : computes_little_(computes_little), saved_(_mm_getcsr()) {
    if ((saved_ & ~raised) != all_exceptions_masked) _mm_setcsr(all_exceptions_masked);
  }
  // Exception flags of the call are cleared: overflow and 0/0 have defined results.
  ~IeeeArithmetic() {
    const bool changed = (saved_ & ~raised) != all_exceptions_masked;
    if (changed || (!computes_little_ && _mm_getcsr() != saved_)) _mm_setcsr(saved_);
  }
#elif defined(__aarch64__)
  explicit IeeeArithmetic(bool = false) {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~IeeeArithmetic() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  explicit IeeeArithmetic(bool = false) : saved_(std::fegetround()) {
    std::fesetround(FE_TONEAREST);
  }
  ~IeeeArithmetic() { std::fesetround(saved_); }
#endif
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

 private:
#if defined(__SSE__) || defined(_M_X64)
  static constexpr unsigned all_exceptions_masked = 0x1f80;
  static constexpr unsigned raised = 0x3f;  // exception flags
  const bool computes_little_;
  const unsigned saved_;
#elif defined(__aarch64__)
  std::uint64_t saved_ = 0;
#else
  int saved_;
#endif
};

}  // namespace anybit
