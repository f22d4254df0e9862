// eval/records.h -- FOLDER/samples.jsonl: a line of settings, then one record a line.
#pragma once
#include <string>
#include <vector>

#include "eval/eval.h"

namespace se::eval {

class RecordFile {
 public:
  // Opens or makes the file; `settings` is a JSON object that must equal the first line of a file that is
  // there. An unfinished last line (a run that was killed) is dropped.
  static Result<RecordFile> open(const std::string& path, const std::string& settings);
  ~RecordFile();
  RecordFile(RecordFile&& other) noexcept;
  RecordFile(const RecordFile&) = delete;

  const std::vector<Record>& records() const { return records_; }
  bool has(const std::string& suite, int64_t length, int64_t sample, const std::string& plan) const;
  Status add(Record record);  // written and flushed before it returns

 private:
  RecordFile() = default;
  std::string path_;
  std::FILE* file_ = nullptr;
  std::vector<Record> records_;
};

}  // namespace se::eval
