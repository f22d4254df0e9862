#include "model/hf/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/fmt.h"
#include "base/quoted.h"
#include "device/tensor.h"
#include "model/gguf.h"

namespace se {
namespace {

// A listener to the JSON reader. The only form is
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"k": "v",
//   ...}}
// and whatever differs ends the reading, so nothing the size of the header is built but the entries
// themselves.
class Listener final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafeEntry> entries;
  std::string error;  // empty: so far so good
  size_t error_byte = 0;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a bool"); }
  bool number_float(double, const std::string&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary"); }
  bool number_integer(int64_t value) override { return number(value); }
  bool number_unsigned(uint64_t value) override {
    return value <= uint64_t(INT64_MAX) ? number(int64_t(value)) : unexpected(format("{}", value));
  }

  bool string(std::string& value) override {
    if (in_metadata_ && depth_ == 2) return true;
    if (depth_ != 2 || field_ != "dtype") return unexpected("a string");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (list_ != nullptr || depth_ >= 2) return unexpected("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }

  bool key(std::string& value) override {
    if (depth_ == 1) {
      in_metadata_ = value == "__metadata__";
      if (!names_.insert(value).second)
        return fail(format("{} is there twice, expected once", se::quoted(value)));
      if (!in_metadata_) entries.push_back({value, "", {}, {}, false});
      field_.clear();
    } else {
      field_ = value;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr) return unexpected("an array");
    if (field_ != "shape" && field_ != "data_offsets") return unexpected("an array");
    SafeEntry& entry = entries.back();
    list_ = field_ == "shape" ? &entry.shape : &entry.range;
    if (!list_->empty() || (field_ == "shape" && entry.has_shape))
      return fail(about() + " is there twice, expected once");
    entry.has_shape |= field_ == "shape";
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    error_byte = at;
    return fail("not JSON here");
  }

 private:
  std::string about() const {
    if (entries.empty() || in_metadata_) return "the header";
    return format(
        "tensor {}{}{}", se::quoted(entries.back().name), field_.empty() ? "" : ": ", se::quoted(field_));
  }
  bool fail(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }
  bool unexpected(const std::string& found) {
    return fail(format("{} has {}, expected tensors as {{dtype, shape, data_offsets}}", about(), found));
  }
  bool number(int64_t value) {
    if (list_ == nullptr) return unexpected("a number");
    const size_t most = field_ == "shape" ? size_t(TensorView::kMaxRank) : 2;
    if (list_->size() == most) return fail(format("{} has more than {} numbers", about(), most));
    list_->push_back(value);
    return true;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string field_;
  std::vector<int64_t>* list_ = nullptr;
  std::set<std::string> names_;
};

}  // namespace

Result<std::vector<SafeEntry>> parse_safetensors_header(std::string_view json, int64_t at) {
  Listener listener;
  const bool read = nlohmann::json::sax_parse(json, &listener);
  if (!read) {
    return invalid(format("byte {}: the header: {}",
                          at + int64_t(listener.error_byte),
                          listener.error.empty() ? "not JSON" : listener.error));
  }
  return std::move(listener.entries);
}

}  // namespace se
