// SPDX-License-Identifier: Apache-2.0
// C++ wrappers of ONNX Runtime's C API: failures throw, handles are released, and no exception
// leaves to the host.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "abi.hpp"
#include "ops/types.hpp"

namespace anybit::ort {

// Throws the message of a status that is not null, and releases it.
inline void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const auto release = [&api](OrtStatus* owned) { api.ReleaseStatus(owned); };
  const std::unique_ptr<OrtStatus, decltype(release)> owned(status, release);
  throw std::runtime_error(api.GetErrorMessage(status));
}

// Whether a call succeeded, for calls whose failure is a regular result.
inline bool succeeded(const OrtApi& api, OrtStatus* status) {
  if (status != nullptr) api.ReleaseStatus(status);
  return status == nullptr;
}

// Runs `work`, and turns exceptions into a status.
template <class Work>
OrtStatus* guarded(const OrtApi& api, const Work& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const Error& error) {
    return api.CreateStatus(OrtErrorCode::invalid_argument, error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(OrtErrorCode::fail, error.what());
  } catch (...) {
    return api.CreateStatus(OrtErrorCode::fail, "anybit failed for an unknown reason");
  }
}

// Runs `work`, and adds the location to the messages of its exceptions.
template <class Work>
void located(const std::string& where, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    throw Error(Error::Kind::value, where + ": " + error.what());
  }
}

// Returns the text of `get(out, size)`. The host may or may not count the terminating zero.
template <class Get>
std::string text_from(const OrtApi& api, const Get& get) {
  std::size_t size = 0;
  check(api, get(nullptr, &size));
  std::string text(size + 1, '\0');
  check(api, get(text.data(), &size));
  text.resize(size);
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

constexpr std::optional<ElementType> element_type_of(OrtElementType type) {
  switch (type) {
    case OrtElementType::float32:
      return ElementType::float32;
    case OrtElementType::float64:
      return ElementType::float64;
    case OrtElementType::float16:
      return ElementType::float16;
    case OrtElementType::bfloat16:
      return ElementType::bfloat16;
    case OrtElementType::int8:
      return ElementType::int8;
    case OrtElementType::int16:
      return ElementType::int16;
    case OrtElementType::int32:
      return ElementType::int32;
    case OrtElementType::int64:
      return ElementType::int64;
    case OrtElementType::uint8:
      return ElementType::uint8;
    case OrtElementType::uint16:
      return ElementType::uint16;
    case OrtElementType::uint32:
      return ElementType::uint32;
    case OrtElementType::uint64:
      return ElementType::uint64;
    case OrtElementType::boolean:
      return ElementType::boolean;
    default:
      return std::nullopt;
  }
}

constexpr OrtElementType ort_type_of(ElementType type) {
  for (std::int32_t number = 0; number < 32; ++number)
    if (element_type_of(OrtElementType{number}) == type) return OrtElementType{number};
  return OrtElementType::undefined;
}

// Element type and shape of a tensor. Unknown sizes are -1. A tensor of unknown rank has no sizes,
// like a scalar: the host does not distinguish them.
struct Description {
  OrtElementType type = OrtElementType::undefined;
  std::size_t rank = 0;
  std::int64_t sizes[max_rank];  // only the first `rank` are set

  void read(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info) {
    check(api, api.GetTensorElementType(info, &type));
    check(api, api.GetDimensionsCount(info, &rank));
    if (rank > max_rank)
      throw Error(Error::Kind::value, "tensors of more than " + std::to_string(max_rank) +
                                          " dimensions are not supported, got " +
                                          std::to_string(rank));
    check(api, api.GetDimensions(info, sizes, rank));
  }

  void read(const OrtApi& api, const OrtValue* value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api, api.GetTensorTypeAndShape(value, &info));
    const auto release = [&api](OrtTensorTypeAndShapeInfo* owned) {
      api.ReleaseTensorTypeAndShapeInfo(owned);
    };
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owned(info, release);
    read(api, info);
  }

  // Makes a tensor of this description; it borrows the sizes.
  Tensor with_data(void* data, std::string_view name) const {
    const std::optional<ElementType> element_type = element_type_of(type);
    if (!element_type)
      throw Error(Error::Kind::type,
                  std::string(name) + " must be a tensor of real numbers, got " +
                      (type == OrtElementType::string
                           ? std::string("strings")
                           : "ONNX element type " + std::to_string(static_cast<int>(type))) +
                      "; insert a Cast");
    return {data, *element_type, static_cast<int>(rank), sizes, nullptr, true, false};
  }
};

inline void* data_of(const OrtApi& api, const OrtValue* value) {
  void* data = nullptr;
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

}  // namespace anybit::ort
