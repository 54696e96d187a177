// SPDX-License-Identifier: Apache-2.0
// Stages of functions of all channels of a pixel in float32.
#include <vector>

#include "stage.hpp"

namespace anybit::lowbit {

namespace {

class FloatRowsStage : public Stage {
 public:
  FloatRowsStage(std::string_view instruction, const FloatTensor& tensor, const FloatPlace& from,
                 const FloatPlace& to)
      : from_(from), to_(to) {
    name = instruction;
    lines = tensor.height * tensor.width;
    channels = tensor.channels;
    // An estimate: an element takes as long as a few additions.
    elements = tensor.elements() * 4;
  }

  std::string kernel() const override { return "floats"; }

  void run(const Memory& memory, const Part& part) const final {
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      compute(from_.read(memory, row) + part.first_line * channels,
              part.last_line - part.first_line,
              to_.write(memory, row) + part.first_line * channels);
  }

 protected:
  virtual void compute(const float* x, std::int64_t pixels, float* to) const = 0;

 private:
  const FloatPlace from_, to_;
};

class SoftmaxStage final : public FloatRowsStage {
 public:
  SoftmaxStage(const FloatTensor& tensor, const FloatPlace& from, const FloatPlace& to,
               const ElementLoops& loops)
      : FloatRowsStage(Softmax::name, tensor, from, to), loops_(loops) {}

 protected:
  void compute(const float* x, std::int64_t pixels, float* to) const override {
    loops_.softmax(x, pixels, channels, to);
  }

 private:
  const ElementLoops& loops_;
};

class LayerNormStage final : public FloatRowsStage {
 public:
  LayerNormStage(const LayerNorm& at, const FloatTensor& tensor, const FloatPlace& from,
                 const FloatPlace& to, const ElementLoops& loops)
      : FloatRowsStage(LayerNorm::name, tensor, from, to),
        loops_(loops),
        gains_(at.gains.begin(), at.gains.end()),
        offsets_(at.offsets.begin(), at.offsets.end()),
        constants_{gains_.data(), offsets_.data(), at.epsilon[0]} {}

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>((gains_.size() + offsets_.size()) * sizeof(float));
  }

 protected:
  void compute(const float* x, std::int64_t pixels, float* to) const override {
    loops_.normalize(constants_, x, pixels, channels, to);
  }

 private:
  const ElementLoops& loops_;
  const std::vector<float> gains_, offsets_;
  const Normalization constants_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Softmax&, const FloatTensor& tensor,
                                  const FloatPlace& source, const FloatPlace& target,
                                  const ElementLoops& loops) {
  return std::make_unique<SoftmaxStage>(tensor, source, target, loops);
}

std::unique_ptr<Stage> make_stage(const LayerNorm& at, const FloatTensor& tensor,
                                  const FloatPlace& source, const FloatPlace& target,
                                  const ElementLoops& loops) {
  return std::make_unique<LayerNormStage>(at, tensor, source, target, loops);
}

}  // namespace anybit::lowbit
