// SPDX-License-Identifier: Apache-2.0
#include "crew.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anybit {

namespace {

// Time that a helper spins after a call: the next call of a loop over inputs comes sooner.
constexpr std::chrono::microseconds patience{200};

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
  asm volatile("isb");
#endif
}

}  // namespace

// Spins for a short wait on another thread, and yields in case that thread lost its processor.
template <class Done>
void Crew::wait_until(const Done& done) const {
  const int most = spin_.load(std::memory_order_relaxed) ? 4096 : 1;
  for (int tries = 1; !done(); ++tries) {
    if (tries % most == 0) std::this_thread::yield();
    else pause();
  }
}

void Crew::run(const Helpers& helpers, std::span<const int> pieces, const Workers::Piece& piece) {
  prepare(helpers, pieces, piece);
  open_.store(true, std::memory_order_seq_cst);
  job_.fetch_add(1, std::memory_order_seq_cst);
  if (helpers.wake && asleep_.load(std::memory_order_seq_cst) > 0) job_.notify_all();
  take_part(0);
  open_.store(false, std::memory_order_seq_cst);
  wait_until([this] { return inside_.load(std::memory_order_seq_cst) == 0; });
}

void Crew::prepare(const Helpers& helpers, std::span<const int> pieces,
                   const Workers::Piece& piece) {
  if (room_ < pieces.size()) {
    stages_ = std::make_unique<Stage[]>(pieces.size());
    room_ = pieces.size();
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    stages_[i].taken.store(0, std::memory_order_relaxed);
    stages_[i].done.store(0, std::memory_order_relaxed);
  }
  pieces_ = pieces;
  piece_ = &piece;
  while (started_ < helpers.count) {
    try {
      std::thread([this, number = started_ + 1] { serve(number); }).detach();
    } catch (const std::system_error&) {
      break;  // no more threads available: work with the existing ones
    }
    ++started_;
  }
  admitted_ = helpers.count;
  spin_.store(helpers.spin, std::memory_order_relaxed);
}

void Crew::take_part(int number) {
  for (std::size_t s = 0; s < pieces_.size(); ++s) {
    Stage& stage = stages_[s];
    const int all = pieces_[s];
    int mine = 0;
    for (int i = 0; i < all; ++i) {
      const int own = (number + i) % all;
      const std::uint64_t bit = std::uint64_t{1} << own;
      if ((stage.taken.load(std::memory_order_relaxed) & bit) != 0) continue;
      if ((stage.taken.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) continue;
      (*piece_)(static_cast<int>(s), own);
      ++mine;
    }
    if (mine > 0) stage.done.fetch_add(mine, std::memory_order_release);
    wait_until([&] { return stage.done.load(std::memory_order_acquire) >= all; });
  }
}

void Crew::serve(int number) {
  std::uint32_t seen = 0;
  for (;;) {
    seen = next_job(seen);
    // A helper that enters sees the work, or that the call is over; the caller sees all helpers
    // inside before it returns.
    inside_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst) && number <= admitted_) take_part(number);
    inside_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

std::uint32_t Crew::next_job(std::uint32_t seen) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (int tries = 1;; ++tries) {
    const std::uint32_t now = job_.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause();
    const bool spins = spin_.load(std::memory_order_relaxed);
    if (spins && (tries % 64 != 0 || std::chrono::steady_clock::now() < until)) continue;
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    job_.wait(seen, std::memory_order_seq_cst);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace anybit
