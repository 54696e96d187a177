// SPDX-License-Identifier: Apache-2.0
// Reads an operator's attributes from a node, by the names of its `visit`.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "host.hpp"

namespace anybit::ort {

// Source of attributes. Reading functions return false for a missing attribute.
class AttributeSource {
 public:
  virtual ~AttributeSource() = default;
  // Whether invalid attributes count as missing.
  virtual bool forgiving() const { return false; }
  virtual bool read(const std::string& name, std::int64_t& number) const = 0;
  virtual bool read(const std::string& name, std::string& text) const = 0;
};

// A node whose kernel is being created.
class NodeAttributes final : public AttributeSource {
 public:
  NodeAttributes(const OrtApi& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  bool read(const std::string& name, std::int64_t& number) const override {
    return exists(api_.KernelInfoGetAttribute_int64(info_, name.c_str(), &number), name,
                  "an integer");
  }

  bool read(const std::string& name, float& number) const {
    return exists(api_.KernelInfoGetAttribute_float(info_, name.c_str(), &number), name,
                  "a number");
  }

  bool read(const std::string& name, std::string& text) const override {
    std::size_t size = 0;
    if (!exists(api_.KernelInfoGetAttribute_string(info_, name.c_str(), nullptr, &size), name,
                "a string"))
      return false;
    text = text_from(api_, [&](char* out, std::size_t* length) {
      return api_.KernelInfoGetAttribute_string(info_, name.c_str(), out, length);
    });
    return true;
  }

  // Throws Error for a missing attribute.
  template <class Value>
  Value require(const std::string& name) const {
    Value value{};
    if (!read(name, value)) throw Error(Error::Kind::value, "attribute " + name + " is missing");
    return value;
  }

 private:
  // The host has one error code for a missing attribute and for one of another type; only the
  // messages differ. An unknown message counts as missing, so that defaults keep working.
  bool exists(OrtStatus* status, const std::string& name, const char* expected) const {
    if (status == nullptr) return true;
    const std::string message = api_.GetErrorMessage(status);
    api_.ReleaseStatus(status);
    if (message.find("type don't match") == std::string::npos) return false;
    throw Error(Error::Kind::type,
                "attribute " + name + " must be " + expected + ", got " + value_of(name));
  }

  std::string value_of(const std::string& name) const {
    std::int64_t integer = 0;
    if (succeeded(api_, api_.KernelInfoGetAttribute_int64(info_, name.c_str(), &integer)))
      return "the integer " + std::to_string(integer);
    float number = 0;
    if (succeeded(api_, api_.KernelInfoGetAttribute_float(info_, name.c_str(), &number)))
      return "the float " + std::to_string(number);
    std::size_t size = 0;
    if (!succeeded(api_, api_.KernelInfoGetAttribute_string(info_, name.c_str(), nullptr, &size)))
      return "a list, a tensor or a graph";
    return "the string '" +
           text_from(api_,
                     [&](char* out, std::size_t* length) {
                       return api_.KernelInfoGetAttribute_string(info_, name.c_str(), out, length);
                     }) +
           "'";
  }

  const OrtApi& api_;
  const OrtKernelInfo* info_;
};

// A node whose output type is being inferred. Errors are reported when its kernel is created.
class InferredAttributes final : public AttributeSource {
 public:
  InferredAttributes(const OrtApi& api, const OrtShapeInferContext* context)
      : api_(api), context_(context) {}

  bool forgiving() const override { return true; }

  bool read(const std::string& name, std::int64_t& number) const override {
    std::size_t size = 0;
    const OrtOpAttr* attribute = find(name);
    return attribute != nullptr &&
           succeeded(api_, api_.ReadOpAttr(attribute, OrtAttributeType::integer, &number,
                                           sizeof number, &size));
  }

  bool read(const std::string& name, std::string& text) const override {
    const OrtOpAttr* attribute = find(name);
    if (attribute == nullptr) return false;
    // Without a buffer, the host returns the size and a failure.
    std::size_t size = 0;
    succeeded(api_, api_.ReadOpAttr(attribute, OrtAttributeType::string, nullptr, 0, &size));
    text.assign(size + 1, '\0');
    if (!succeeded(api_, api_.ReadOpAttr(attribute, OrtAttributeType::string, text.data(),
                                         text.size(), &size)))
      return false;
    text.resize(std::min(size, text.size()));
    if (!text.empty() && text.back() == '\0') text.pop_back();
    return true;
  }

 private:
  const OrtOpAttr* find(const std::string& name) const {
    const OrtOpAttr* attribute = nullptr;
    return succeeded(api_, api_.ShapeInferContext_GetAttribute(context_, name.c_str(), &attribute))
               ? attribute
               : nullptr;
  }

  const OrtApi& api_;
  const OrtShapeInferContext* context_;
};

inline bool assign(const AttributeSource& source, const std::string& name, std::int64_t& number) {
  return source.read(name, number);
}

inline bool assign(const AttributeSource& source, const std::string& name, bool& flag) {
  std::int64_t number = 0;
  if (!source.read(name, number)) return false;
  if (number != 0 && number != 1)
    throw Error(Error::Kind::value,
                "attribute " + name + " must be 0 or 1, got " + std::to_string(number));
  flag = number == 1;
  return true;
}

template <class Choice>
bool assign(const AttributeSource& source, const std::string& name, Choice& choice) {
  std::string text;
  if (!source.read(name, text)) return false;
  parse(text, choice);
  return true;
}

template <class Value>
bool assign_if_right(const AttributeSource& source, std::string_view name, Value& value) {
  try {
    return assign(source, std::string(name), value);
  } catch (const Error&) {
    if (!source.forgiving()) throw;
    return false;
  }
}

// Attributes of a node, with defaults for missing ones.
template <class Op>
std::shared_ptr<const void> attributes_from(const AttributeSource& source) {
  auto attributes = std::make_shared<typename Op::Attributes>();
  attributes->visit([&](std::string_view name, auto& value, auto... onnx_names) {
    if constexpr (sizeof...(onnx_names) == 0) assign_if_right(source, name, value);
    else (assign_if_right(source, onnx_names, value) || ...);
  });
  return attributes;
}

}  // namespace anybit::ort
