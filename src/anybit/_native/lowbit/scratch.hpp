// SPDX-License-Identifier: Apache-2.0
// Memory of threads.
#pragma once
#include <cstddef>
#include <new>

namespace {

// Growing scratch memory of a thread.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { ::operator delete(data_, boundary); }
  std::byte* get(std::size_t size) {
    if (size > size_) {
      ::operator delete(data_, boundary);
      size_ = 0;
      data_ = static_cast<std::byte*>(::operator new(size, boundary, std::nothrow));
      if (data_ != nullptr) size_ = size;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t boundary{64};
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace
