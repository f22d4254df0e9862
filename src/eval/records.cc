#include "eval/records.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/fmt.h"

namespace se::eval {
namespace {

using nlohmann::ordered_json;

std::string to_line(const Record& r) {
  ordered_json o{{"suite", r.suite},
                 {"length", r.length},
                 {"sample", r.sample},
                 {"plan", r.plan},
                 {"prompt_tokens", r.prompt_tokens},
                 {"cached_tokens", r.cached_tokens},
                 {"kv_bytes", r.kv_bytes},
                 {"peak_bytes", r.peak_bytes},
                 {"dense_bytes", r.dense_bytes},
                 {"read_ratio", r.read_ratio}};
  const auto number = [&](const char* key, double v) {
    if (v >= 0) o[key] = v;
  };
  number("depth", r.depth), number("score", r.score), number("nll", r.nll);
  if (r.nll >= 0) o["kl"] = r.kl;  // rounding may take it a little below zero
  number("same_top", r.same_top), number("recall", r.recall);
  if (r.suite != "text") o["answer"] = r.answer;
  return o.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Record from_json(const ordered_json& o) {
  Record r;
  const auto number = [&](const char* key, double fallback) { return o.value(key, fallback); };
  r.suite = o.at("suite"), r.plan = o.at("plan"), r.length = o.at("length"), r.sample = o.at("sample");
  r.answer = o.value("answer", std::string());
  r.prompt_tokens = o.value("prompt_tokens", int64_t{0}),
  r.cached_tokens = o.value("cached_tokens", int64_t{0});
  r.kv_bytes = number("kv_bytes", 0), r.peak_bytes = number("peak_bytes", 0);
  r.dense_bytes = number("dense_bytes", 0), r.read_ratio = number("read_ratio", 0);
  r.depth = number("depth", -1), r.score = number("score", -1), r.nll = number("nll", -1);
  r.kl = number("kl", -1), r.same_top = number("same_top", -1), r.recall = number("recall", -1);
  return r;
}

// The settings that differ, for a message.
std::string difference(const ordered_json& there, const ordered_json& here) {
  std::string out;
  for (const auto& [key, value] : here.items()) {
    const std::string was = there.contains(key) ? there[key].dump() : "nothing";
    if (was != value.dump())
      out += format("{}{} was {}, is {}", out.empty() ? "" : "; ", key, was, value.dump());
  }
  return out;
}

}  // namespace

Result<RecordFile> RecordFile::open(const std::string& path, const std::string& settings) {
  RecordFile f;
  f.path_ = path;
  std::string text;
  if (std::ifstream in(path, std::ios::binary); in) {
    std::stringstream all;
    all << in.rdbuf();
    text = all.str();
  }
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  std::istringstream lines(text.substr(0, whole));
  int64_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const ordered_json o = ordered_json::parse(line, nullptr, false);
    if (o.is_discarded() || !o.is_object())
      return invalid(format("{}: line {} is no JSON object; another -o, or remove the file", path, n + 1));
    if (n == 0) {
      if (const std::string d = difference(o, ordered_json::parse(settings)); !d.empty())
        return invalid(format("{} holds another run ({}): another -o, or remove it", path, d));
      continue;
    }
    try {
      f.records_.push_back(from_json(o));
    } catch (const nlohmann::json::exception&) {
      return invalid(format("{}: line {} is no record of an evaluation", path, n + 1));
    }
  }
  f.file_ = std::fopen(path.c_str(), "ab");
  if (!f.file_) return io_error(format("cannot write {}: {}", path, std::strerror(errno)));
  if (whole < text.size() && ::ftruncate(::fileno(f.file_), off_t(whole)) != 0)
    return io_error(format("cannot shorten {}: {}", path, std::strerror(errno)));
  if (n == 0) std::fputs((settings + "\n").c_str(), f.file_);
  return f;
}

RecordFile::~RecordFile() {
  if (file_) std::fclose(file_);
}

RecordFile::RecordFile(RecordFile&& other) noexcept
    : path_(std::move(other.path_)), file_(other.file_), records_(std::move(other.records_)) {
  other.file_ = nullptr;
}

bool RecordFile::has(const std::string& suite,
                     int64_t length,
                     int64_t sample,
                     const std::string& plan) const {
  for (const Record& r : records_) {
    if (r.sample == sample && r.length == length && r.suite == suite && r.plan == plan) return true;
  }
  return false;
}

Status RecordFile::add(Record record) {
  const std::string line = to_line(record) + "\n";
  records_.push_back(std::move(record));
  if (std::fputs(line.c_str(), file_) < 0 || std::fflush(file_) != 0)
    return io_error(format("cannot write {}: {}", path_, std::strerror(errno)));
  return ok();
}

}  // namespace se::eval
