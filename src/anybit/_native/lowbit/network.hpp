// SPDX-License-Identifier: Apache-2.0
// A program, verified and planned: what it takes to run is made once, here.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "_native/threads/workers.hpp"
#include "plan.hpp"
#include "program.hpp"
#include "stage.hpp"

namespace anybit::lowbit {

// What was chosen for an instruction.
struct StageReport {
  std::string_view instruction;
  std::string kernel;
  std::string_view source, target;  // codings; nothing for an input or an output
  std::int64_t bytes = 0;           // of weights and tables
  std::int64_t multiplications = 0;
};

class Network {
 public:
  // Keeps nothing of the encoded program. Throws Error if it is damaged.
  explicit Network(const Encoded& encoded);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Sizes of a row of each input and output.
  using Sizes = std::vector<std::int64_t>;
  const std::vector<Sizes>& inputs() const { return inputs_; }
  const std::vector<Sizes>& outputs() const { return outputs_; }

  // Runs so many rows, each array one row behind the other. May be called by several threads at
  // once. Throws Error for NaN where the program refuses it; the outputs are of no use then.
  void run(const float* const* inputs, float* const* outputs, std::int64_t rows,
           const Workers& workers) const;

  // The same in this thread; adds the seconds that each instruction took.
  void run_timed(const float* const* inputs, float* const* outputs, std::int64_t rows,
                 double* seconds) const;

  // Roughly how long one thread works on so many rows.
  std::int64_t nanoseconds(std::int64_t rows) const { return rows * nanoseconds_per_row_; }

  std::vector<StageReport> report() const;
  std::int64_t rows_together() const { return plan_->rows; }
  std::int64_t memory() const { return plan_->bytes; }

 private:
  class Scratch;
  class Scratches;
  struct Call;

  bool turned() const;
  void run_rows(const Call& call, const Scratch& scratch, std::int64_t first,
                std::int64_t last) const;
  void run_in_rows(const Call& call, const Workers& workers, int threads) const;
  void run_in_stages(const Call& call, const Workers& workers, int threads) const;

  std::vector<Sizes> inputs_, outputs_;
  std::unique_ptr<Plan> plan_;
  Stages stages_;
  std::int64_t nanoseconds_per_row_ = 0;
  mutable std::atomic<bool> turned_{false};
  mutable std::array<std::atomic<std::byte*>, 16> spare_{};  // memory of runs that are over
};

}  // namespace anybit::lowbit
