// SPDX-License-Identifier: Apache-2.0
// Executors of parallel work, passed as arguments: the library's threads (pool.hpp), a host's
// threads, or the calling thread alone.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

namespace anybit {

// Reference to a function that outlives the call and is noexcept: exceptions cannot leave a helper
// thread, so work does not allocate memory or throw.
template <class... Arguments>
class Work {
 public:
  template <class Function>
    requires std::is_nothrow_invocable_v<const Function&, Arguments...>
  Work(const Function& function)
      : function_(&function), call_([](const void* function, Arguments... arguments) noexcept {
          (*static_cast<const Function*>(function))(arguments...);
        }) {}

  void operator()(Arguments... arguments) const noexcept { call_(function_, arguments...); }

 private:
  const void* function_;
  void (*call_)(const void*, Arguments...) noexcept;
};

// The calling thread alone; executors with more threads derive from it.
class Workers {
 public:
  using Range = Work<std::int64_t, std::int64_t>;  // first, last
  using Part = Work<int>;
  using Piece = Work<int, int>;  // stage, piece

  // Limit of pieces per stage.
  static constexpr int most_pieces = 64;

  virtual ~Workers() = default;

  // Number of threads that may take part in a call of `run_stages`.
  virtual int threads() const { return 1; }

  // Work below this is faster in one thread than in two.
  virtual std::int64_t serial_nanoseconds() const { return 30'000; }

  // Minimum work of a piece that is worth another thread.
  virtual std::int64_t piece_nanoseconds() const { return 2000; }

  // Runs work(first, last) over disjoint ranges that cover [0, size). Below `grain` elements, a
  // further thread costs more than it saves.
  virtual void split(std::int64_t size, std::int64_t grain, const Range& work) const {
    static_cast<void>(grain);
    work(0, size);
  }

  // Runs part(0), ..., part(parts - 1), in any order.
  virtual void run(int parts, const Part& part) const {
    for (int i = 0; i < parts; ++i) part(i);
  }

  // Runs piece(stage, 0), ..., piece(stage, pieces[stage] - 1) of all stages, one stage after
  // another. `nanoseconds` is the estimated time of one thread for all stages.
  virtual void run_stages(std::span<const int> pieces, std::int64_t nanoseconds,
                          const Piece& piece) const {
    static_cast<void>(nanoseconds);
    for (std::size_t stage = 0; stage < pieces.size(); ++stage)
      for (int i = 0; i < pieces[stage]; ++i) piece(static_cast<int>(stage), i);
  }
};

}  // namespace anybit
