/* Writes down the words and the environment of every program that is started: tests look for secrets in them.
 *
 * Loaded by LD_PRELOAD; appends to $EXEC_LOG. A look at /proc now and then would miss what lives for a millisecond. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void note(int file, char *const words[]) {
  for (; words != NULL && *words != NULL; words++) {
    if (write(file, *words, strlen(*words) + 1) < 0) abort();
  }
}

static void record(char *const argv[], char *const envp[]) {
  const char *path = getenv("EXEC_LOG");
  const int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return;
  note(file, argv);
  note(file, envp);
  close(file);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int execve(const char *path, char *const argv[], char *const envp[]) {
  record(argv, envp);
  return REAL(execve)(path, argv, envp);
}

int execv(const char *path, char *const argv[]) {
  record(argv, environ);
  return REAL(execv)(path, argv);
}

int execvp(const char *file, char *const argv[]) {
  record(argv, environ);
  return REAL(execvp)(file, argv);
}

int execvpe(const char *file, char *const argv[], char *const envp[]) {
  record(argv, envp);
  return REAL(execvpe)(file, argv, envp);
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                char *const argv[], char *const envp[]) {
  record(argv, envp);
  return REAL(posix_spawn)(pid, path, actions, attr, argv, envp);
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr,
                 char *const argv[], char *const envp[]) {
  record(argv, envp);
  return REAL(posix_spawnp)(pid, file, actions, attr, argv, envp);
}
