// SPDX-License-Identifier: Apache-2.0
// Sums of the gradients of parameters. If the prepared parameters are in a table, sums are per
// entry of the table; otherwise per element of the parameter.
#include <algorithm>
#include <numeric>

#include "backward.hpp"

namespace anybit {

namespace {

// A chunk is summed in one thread. Chunks are enough to occupy threads, and few enough that
// combining them is free.
constexpr std::int64_t elements_per_chunk = 64 * 1024;
constexpr std::int64_t most_chunks = 64;

std::int64_t count_of(const Tensor& tensor) {
  return std::accumulate(tensor.shape, tensor.shape + tensor.rank, std::int64_t{1},
                         std::multiplies<>());
}

}  // namespace

// Collects the parameters with requested gradients, and returns their bits.
std::uint32_t Backward::plan_sums(const Gradients& gradients) {
  std::uint32_t summed = 0;
  int parameters = 0;
  for (const int input : op_.differentiable) {
    if (input == 0) continue;
    const int product = parameters++;
    const Tensor& gradient = gradients.of_inputs[static_cast<std::size_t>(input)];
    if (!gradient.given) continue;
    summed |= 1u << (input - 1);
    sums_.push_back({input - 1, product, gradient, count_of(gradient), 0, {}});
    scope_ = product == 0 ? 1 : 2;
  }
  products_ = scope_ < 2 ? scope_ : parameters;
  return summed;
}

// Splits the elements into chunks, independent of the number of threads.
void Backward::plan_chunks() {
  bool shared = false, split = true;
  if (plane_ > 0) chunk_sums_ = products_ * entries_;
  for (Sum& sum : sums_) {
    if (plane_ > 0) {
      sum.offset = sum.product * entries_;
    } else if (has_own_sums(sum)) {
      sum.offset = chunk_sums_;
      chunk_sums_ += sum.count;
    } else if (!meets_one(sum)) {
      sum.total.resize(static_cast<std::size_t>(sum.count), nothing);
      shared = true;
      // Two chunks must not add to the same element.
      split = split && loop_[0].targets[sum.parameter] != 0;
    }
  }
  // The sums of all chunks together stay small compared with x.
  const std::int64_t room = size() * element_size() / (32 * std::max<std::int64_t>(1, chunk_sums_));
  const std::int64_t useful = std::min({size() / elements_per_chunk, most_chunks, room});
  const std::int64_t chunks = split ? std::max<std::int64_t>(1, useful) : 1;
  chunk_ = (size() + chunks - 1) / chunks;
  const std::int64_t unit = shared ? size() / loop_[0].size : row_ < chunk_ ? row_ : block;
  chunk_ = (chunk_ + unit - 1) / unit * unit;
}

// Sets where the kernel adds: entries of the table, elements of the parameters, or buffers if
// parameters vary by element.
void Backward::point_to_sums(const Position& at, std::int64_t first, GradientRows& all,
                             double* sums, Buffers& buffers) {
  if (plane_ > 0) {
    const std::int64_t entry = at.table + (period_ == 0 ? 0 : first % period_);
    for (int product = 0; product < products_; ++product)
      all.sums[product] = sums + product * entries_ + entry;
    all.sums_step = all.rows.prepared_step;
    return;
  }
  for (int product = 0; product < products_; ++product) {
    all.sums[product] = buffers.sums[product];
    std::fill_n(buffers.sums[product], period_ == 0 ? 1 : all.rows.length, nothing);
  }
  if (period_ > 0) return;
  for (Sum& sum : sums_) all.sums[sum.product] = elements_of(sum, sums) + at.targets[sum.parameter];
}

// Adds the buffers of the kernel to the elements of the parameters.
void Backward::add_elements(const Position& at, std::int64_t first, std::int64_t length,
                            double* sums, const Buffers& buffers) {
  for (Sum& sum : sums_) {
    const double* const products = buffers.sums[sum.product];
    const std::int64_t step = inner().targets[sum.parameter];
    const std::int64_t target = at.targets[sum.parameter] + first * step;
    if (meets_one(sum) && !has_own_sums(sum)) {
      const std::int64_t size = size_of(sum.gradient.type);
      set_.store[static_cast<int>(sum.gradient.type)][1](
          products, length, static_cast<char*>(sum.gradient.data) + target * size, step * size);
      continue;
    }
    double* const elements = elements_of(sum, sums) + target;
    for (std::int64_t i = 0; i < length; ++i) elements[i * step] += products[i];
  }
}

// Rounds the sums to the gradients' types.
void Backward::deliver(const std::vector<double>& sums) {
  for (Sum& sum : sums_) {
    const bool own = plane_ > 0 || has_own_sums(sum);
    if (!own && meets_one(sum)) continue;
    if (sum.total.empty())
      sum.total.resize(static_cast<std::size_t>(sum.count), size() == 0 ? 0 : nothing);
    const double* const values = sums.data() + sum.offset;
    if (plane_ > 0) add_entries(values, sum.parameter, sum.total.data());
    else if (own && size() > 0) std::copy_n(values, sum.count, sum.total.data());
    set_.store[static_cast<int>(sum.gradient.type)][1](
        sum.total.data(), sum.count, sum.gradient.data, size_of(sum.gradient.type));
  }
}

}  // namespace anybit
