// SPDX-License-Identifier: Apache-2.0
// Threads of the session that runs a kernel.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "_native/threads/workers.hpp"
#include "host.hpp"

namespace anybit::ort {

class SessionWorkers final : public Workers {
 public:
  // `threads` is the result of `count_threads`, for work in stages.
  SessionWorkers(const OrtApi& api, const OrtKernelContext* context, int threads = 1)
      : api_(api), context_(context), threads_(threads) {}

  // Pieces are smaller than the grain, because the host schedules them dynamically: large enough to
  // be worth starting, small enough to balance.
  void split(std::int64_t size, std::int64_t grain, const Range& work) const override {
    const std::int64_t piece = grain / 4;
    if (size <= piece) return work(0, size);
    run(static_cast<int>((size + piece - 1) / piece), [&](int part) noexcept {
      const std::int64_t first = part * piece;
      work(first, std::min(first + piece, size));
    });
  }

  void run(int parts, const Part& part) const override {
    const auto call = [](void* shared, std::size_t i) noexcept {
      (*static_cast<const Part*>(shared))(static_cast<int>(i));
    };
    check(api_, api_.KernelContext_ParallelFor(context_, call, static_cast<std::size_t>(parts), 0,
                                               const_cast<Part*>(&part)));
  }

  int threads() const override { return threads_; }
  // The host restarts its threads for every stage.
  std::int64_t piece_nanoseconds() const override { return 15'000; }

  void run_stages(std::span<const int> pieces, std::int64_t, const Piece& piece) const override {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int stage = static_cast<int>(i);
      if (pieces[i] == 1) piece(stage, 0);
      else run(pieces[i], [&](int part) noexcept { piece(stage, part); });
    }
  }

  // The host does not report the number of threads of a session: count those that join a small
  // task.
  int count_threads() const {
    constexpr auto patience = std::chrono::microseconds(3);
    std::array<std::thread::id, most_pieces> seen;
    run(most_pieces, [&](int part) noexcept {
      const auto until = std::chrono::steady_clock::now() + patience;
      while (std::chrono::steady_clock::now() < until) {
      }
      seen[static_cast<std::size_t>(part)] = std::this_thread::get_id();
    });
    std::ranges::sort(seen);
    return static_cast<int>(std::unique(seen.begin(), seen.end()) - seen.begin());
  }

 private:
  const OrtApi& api_;
  const OrtKernelContext* context_;
  const int threads_;
};

}  // namespace anybit::ort
