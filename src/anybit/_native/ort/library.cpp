// SPDX-License-Identifier: Apache-2.0
// Custom-operator library for ONNX Runtime. Independent of the set of operators.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "dynamic_matmul_kernel.hpp"
#include "elementwise_kernel.hpp"
#include "network_kernel.hpp"
#include "ops/operators.hpp"
#include "overload.hpp"
#include "stay_loaded.hpp"

namespace anybit::ort {
namespace {

// Alias domains of the operators of another domain.
struct DomainAlias {
  std::string_view domain;
  std::string_view alias;
};
constexpr DomainAlias domain_aliases[] = {
    {"qonnx.custom_op.general", "finn.custom_op.general"},
    {"qonnx.custom_op.general", "onnx.brevitas"},
};

// An operator's contribution to the overloads of its ONNX name.
struct Declaration {
  std::string_view domain;
  Version version;
  bool attributes_decide_output;
};

// Declared types of an input, one overload per type. Parameters of all types share one overload; x
// needs one per type, because it determines the output type.
std::vector<OrtElementType> declared_types(const Input& input) {
  if (input.domain.types == 0) return {OrtElementType::undefined};
  std::vector<OrtElementType> types;
  for (int i = 0; i < element_type_count; ++i) {
    const auto type = static_cast<ElementType>(i);
    if (input.domain.accepts(type)) types.push_back(ort_type_of(type));
  }
  return types;
}

std::vector<std::vector<OrtElementType>> type_choices(std::span<const Input> inputs) {
  std::vector<std::vector<OrtElementType>> choices(1);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<std::vector<OrtElementType>> longer;
    for (const auto& choice : choices) {
      for (const OrtElementType type : declared_types(inputs[i])) {
        longer.push_back(choice);
        longer.back().push_back(type);
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

bool has_entry(const Host& host, const OrtSessionOptions* options, const std::string& key) {
  int exists = 0;
  check(host.api, host.api.HasSessionConfigEntry(options, key.c_str(), &exists));
  return exists != 0;
}

// All operators for a host. Never destroyed: sessions may be destroyed later than statics.
class Library {
 public:
  explicit Library(const Host& host) : host_(host), network_(host), dynamic_matmul_(host) {
    std::map<std::string, std::vector<Declaration>> operators;
    Operators::for_each([&]<class Op>() {
      const Declaration declaration{
          Op::onnx.domain,
          {&operator_info<Op, Operators>(), attributes_from<Op>},
          requires(const typename Op::Attributes& attributes) { Op::result_type(attributes); }};
      operators[std::string(Op::onnx.name)].push_back(declaration);
      if (!Op::onnx.alias.empty()) operators[std::string(Op::onnx.alias)].push_back(declaration);
    });
    for (auto& [name, declarations] : operators) declare(name, declarations);
    add(network_, network_domain);
    add(dynamic_matmul_, network_domain);
  }

  // All domains, or those named by the options: registration costs time in every session.
  void add_to(OrtSessionOptions* options) const {
    const bool named = has_entry(host_, options, "anybit.domains");
    for (const auto& [name, domain] : domains_)
      if (!named || has_entry(host_, options, "anybit.domains." + name))
        check(host_.api, host_.api.AddCustomOpDomain(options, domain));
  }

 private:
  void declare(const std::string& name, std::vector<Declaration>& declarations) {
    std::ranges::sort(declarations, std::greater(), [](const Declaration& declaration) {
      return declaration.version.most_inputs();
    });
    const Declaration& longest = declarations.front();
    for (const auto& types : type_choices(longest.version.info->inputs)) {
      Overload<ElementwiseKernel>& op = overloads_.emplace_back();
      op.host = &host_;
      op.name = name;
      for (const Declaration& declaration : declarations)
        op.declaration.push_back(declaration.version);
      op.required = declarations.back().version.least_inputs();
      op.inputs = types;
      op.output = longest.attributes_decide_output ? OrtElementType::undefined : types[0];
      op.connect();
      add(op, longest.domain);
      for (const DomainAlias& other : domain_aliases)
        if (other.domain == longest.domain) add(op, other.alias);
    }
  }

  void add(const OrtCustomOp& op, std::string_view domain) {
    OrtCustomOpDomain*& handle = domains_[std::string(domain)];
    if (handle == nullptr)
      check(host_.api, host_.api.CreateCustomOpDomain(std::string(domain).c_str(), &handle));
    check(host_.api, host_.api.CustomOpDomain_Add(handle, &op));
  }

  const Host host_;
  const NetworkOperator network_;
  const DynamicMatMulOperator dynamic_matmul_;
  std::deque<Overload<ElementwiseKernel>> overloads_;  // the host keeps pointers to the overloads
  std::map<std::string, OrtCustomOpDomain*> domains_;
};

const Library& library_for(const OrtApiBase& base, const Host& host) {
  static std::mutex mutex;
  static auto& libraries = *new std::map<const OrtApiBase*, const Library*>;
  const std::scoped_lock lock(mutex);
  const Library*& library = libraries[&base];
  if (library == nullptr) {
    stay_loaded();
    library = new Library(host);
  }
  return *library;
}

// The minor version of 1.minor.patch; later major versions have all functions used here.
std::uint32_t minor_of(const char* version) {
  std::uint32_t major = 0, minor = 0;
  const char* const end = version + std::strlen(version);
  const auto dot = std::from_chars(version, end, major).ptr;
  if (dot != end) std::from_chars(dot + 1, end, minor);
  return major > 1 ? takes_empty_names : minor;
}

// Session options record that they have the library: registering twice would be an error.
void register_once(OrtSessionOptions* options, const OrtApiBase& base, const Host& host) {
  constexpr const char* key = "anybit.registered";
  if (has_entry(host, options, key)) return;
  library_for(base, host).add_to(options);
  check(host.api, host.api.AddSessionConfigEntry(options, key, "1"));
}

}  // namespace
}  // namespace anybit::ort

extern "C"
#ifdef _WIN32
    __declspec(dllexport)
#else
    __attribute__((visibility("default")))
#endif
    anybit::ort::OrtStatus* RegisterCustomOps(anybit::ort::OrtSessionOptions* options,
                                              const anybit::ort::OrtApiBase* base) noexcept {
  using namespace anybit::ort;
  const char* const version = base->GetVersionString();
  const Host host{*base->GetApi(1), minor_of(version)};
  return guarded(host.api, [&] {
    if (host.minor < oldest_api)
      throw std::runtime_error("anybit needs ONNX Runtime 1.17 or newer, this is " +
                               std::string(version));
    register_once(options, *base, {*base->GetApi(oldest_api), host.minor});
  });
}
