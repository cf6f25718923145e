// io/atomic_file.hpp: AtomicFile, a file that appears under its name complete or not at all.
//
// The content goes to a temporary beside the target; commit() syncs it, renames it over the target and syncs the
// folder. Whatever fails before (a full disk, an exception, the end of the process), the previous file stays as it was.
//
// May know: base.
// Example: AtomicFile a("best.h5");  Hdf5Writer w(a.temporary());  ...  w.close();  a.commit();
#pragma once

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <tessera/base/error.hpp>
#include <unistd.h>
#include <utility>

namespace tessera::io {

class AtomicFile {
public:
  explicit AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".incomplete") {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (!committed_) ::unlink(temporary_.c_str());
  }

  const std::string& path() const { return path_; }
  /// The file to write and close before commit(). Its name is fixed, so an interrupted process leaves at most one
  /// behind.
  const std::string& temporary() const { return temporary_; }

  /// Makes the temporary durable and gives it its name. Throws io_error; then the previous file is untouched.
  void commit() {
    sync(temporary_, O_RDONLY);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename the finished file to it");
    committed_ = true;
    const auto slash = path_.rfind('/');
    sync(slash == path_.npos ? "." : slash == 0 ? "/" : path_.substr(0, slash), O_RDONLY | O_DIRECTORY);
  }

private:
  [[noreturn]] static void fail(const std::string& path, std::string_view doing) {
    const int error = errno;
    throw io_error(text("file '", path, "': cannot ", doing, ": ", std::strerror(error),
                        "; check that the folder exists, may be written and has space"));
  }
  static void sync(const std::string& path, int flags) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
    if (fd < 0) fail(path, "open to sync");
    const int failed = ::fsync(fd) != 0 ? errno : 0;
    ::close(fd);
    errno = failed;
    if (failed != 0 && failed != EINVAL) fail(path, "sync"); // EINVAL: this file system cannot sync folders
  }

  std::string path_, temporary_;
  bool committed_ = false;
};

/// Writes `content` as the file `path`, or throws io_error and leaves the previous file as it was.
inline void write_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  const auto fail = [&](std::string_view doing, int error) {
    throw io_error(text("file '", path, "': cannot ", doing, ": ", std::strerror(error),
                        "; free some space or choose another folder"));
  };
  const int fd = ::open(file.temporary().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail("create", errno);
  int error = 0;
  while (!content.empty() && error == 0) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put > 0)
      content.remove_prefix(static_cast<std::size_t>(put));
    else if (put == 0)
      error = ENOSPC;
    else if (errno != EINTR)
      error = errno;
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error != 0) fail("write", error);
  file.commit();
}

} // namespace tessera::io
