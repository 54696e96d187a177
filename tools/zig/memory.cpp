// SPDX-License-Identifier: Apache-2.0
// The functions behind new and delete, in place of those of the C++ library that Zig links in: its
// linker for macOS exports whatever is not hidden, and a process has only one of each such name. To
// be compiled with -fvisibility-global-new-delete=force-hidden.
#include <cstdlib>
#include <new>

namespace {

void* memory_of(std::size_t size, std::size_t alignment) noexcept {
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}

void* memory_or_throw(std::size_t size, std::size_t alignment) {
  void* const memory = memory_of(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t usual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

// clang-format off
void* operator new(std::size_t size) { return memory_or_throw(size, usual); }
void* operator new[](std::size_t size) { return memory_or_throw(size, usual); }
void* operator new(std::size_t size, std::align_val_t at) { return memory_or_throw(size, std::size_t(at)); }
void* operator new[](std::size_t size, std::align_val_t at) { return memory_or_throw(size, std::size_t(at)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return memory_of(size, usual); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return memory_of(size, usual); }
void* operator new(std::size_t size, std::align_val_t at, const std::nothrow_t&) noexcept { return memory_of(size, std::size_t(at)); }
void* operator new[](std::size_t size, std::align_val_t at, const std::nothrow_t&) noexcept { return memory_of(size, std::size_t(at)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
// clang-format on
