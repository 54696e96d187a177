// SPDX-License-Identifier: Apache-2.0
// Spinning thread pool for work of 10 us to 1 ms in several stages. Awake helpers join; the caller
// does not wait for sleeping ones and runs all pieces itself if needed. A stage begins after the
// last piece of the previous stage. A thread prefers the pieces of its own number, so that data
// passed from stage to stage stays in the cache of one processor. Where threads share processors,
// they yield or sleep instead of spinning.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "workers.hpp"

namespace anybit {

class Crew {
 public:
  struct Helpers {
    int count;  // further threads, at most
    bool wake;  // whether waking sleeping ones is worth a system call
    bool spin;  // whether each thread has a processor of its own
  };

  // Runs all pieces of all stages, with helpers. One call at a time.
  void run(const Helpers& helpers, std::span<const int> pieces, const Workers::Piece& piece);

 private:
  struct alignas(64) Stage {
    std::atomic<std::uint64_t> taken{0};  // one bit per piece
    std::atomic<int> done{0};
  };

  void prepare(const Helpers& helpers, std::span<const int> pieces, const Workers::Piece& piece);
  void take_part(int number);
  void serve(int number);
  std::uint32_t next_job(std::uint32_t seen);
  template <class Done>
  void wait_until(const Done& done) const;

  // Written by the caller when no helper is inside.
  std::unique_ptr<Stage[]> stages_;
  std::size_t room_ = 0;
  std::span<const int> pieces_;
  const Workers::Piece* piece_ = nullptr;
  int admitted_ = 0;
  std::atomic<bool> spin_{true};

  int started_ = 0;
  alignas(64) std::atomic<std::uint32_t> job_{0};
  alignas(64) std::atomic<int> asleep_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> open_{false};
};

}  // namespace anybit
