// SPDX-License-Identifier: Apache-2.0
// The threads of the session that a kernel runs in.
#pragma once

#include <algorithm>

#include "_native/threads/workers.hpp"
#include "host.hpp"

namespace anybit::ort {

class SessionWorkers final : public Workers {
 public:
  SessionWorkers(const OrtApi& api, const OrtKernelContext* context)
      : api_(api), context_(context) {}

  // Pieces are smaller than the grain, since the host's threads take them as they come: large
  // enough to be worth starting, small enough to balance.
  void split(std::int64_t size, std::int64_t grain, const Range& work) const override {
    const std::int64_t piece = grain / 4;
    if (size <= piece) return work(0, size);
    run(static_cast<int>((size + piece - 1) / piece), [&](int part) {
      const std::int64_t first = part * piece;
      work(first, std::min(first + piece, size));
    });
  }

  void run(int parts, const Part& part) const override {
    const auto call = [](void* shared, std::size_t i) {
      (*static_cast<const Part*>(shared))(static_cast<int>(i));
    };
    check(api_, api_.KernelContext_ParallelFor(context_, call, static_cast<std::size_t>(parts), 0,
                                               const_cast<Part*>(&part)));
  }

 private:
  const OrtApi& api_;
  const OrtKernelContext* context_;
};

}  // namespace anybit::ort
