#!/usr/bin/env bash
# Runs MariaDB for accounting, with a database and a user whose password only root and slurmdbd know.
#
# needs: packages munge
# roles: head
# when: accounting.database=local node.accounting platform=plain
# limit_s: 900
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

database::daemon() {
  install -d -o mysql -g mysql -m 0755 /run/mysqld
  # setsid: it must outlive the step, whose process group may be ended.
  setsid runuser -u mysql -- /usr/sbin/mariadbd &
  disown
}

# As root through the socket: no password exists for that. SQL comes by standard input, where no process list shows it.
database::sql() {
  timeout 60 mariadb --no-defaults --protocol=socket --batch --skip-column-names "$@"
}

database::answers() {
  database::sql -e 'select 1' >/dev/null 2>&1
}

# The password as a string of SQL: in hexadecimal there is nothing that could end it.
database::password_sql() {
  printf "convert(x'%s' using utf8mb4)" "$(secret::print accounting | od -An -v -tx1 | tr -d ' \n')"
}

# A client that logs in as slurmdbd will. Its password is in a file of root's, not in its words.
database::login_works() {
  local file rc=0
  [[ -s $MUSTER_SECRETS/accounting ]] || return 1
  file=$(umask 077 && mktemp "$MUSTER_SECRETS/.client.XXXXXX")
  {
    echo '[client]'
    printf 'user=%s\npassword="%s"\n' "$C_ACCOUNTING_USER" "$(secret::print accounting | sed 's/[\\"]/\\&/g')"
  } >"$file"
  timeout 60 mariadb --defaults-file="$file" --protocol=socket "$C_ACCOUNTING_NAME" -e 'select 1' >/dev/null 2>&1 || rc=1
  rm -f "$file"
  return $rc
}

# Again and again the same: nothing that is there is dropped, and the password becomes the one that is wanted.
database::prepare() {
  database::sql <<SQL
create database if not exists \`$C_ACCOUNTING_NAME\`;
set @password = $(database::password_sql);
set @create = concat("create user if not exists '$C_ACCOUNTING_USER'@'localhost' identified by ", quote(@password));
prepare made from @create;
execute made;
set @alter = concat("alter user '$C_ACCOUNTING_USER'@'localhost' identified by ", quote(@password));
prepare altered from @alter;
execute altered;
grant all on \`$C_ACCOUNTING_NAME\`.* to '$C_ACCOUNTING_USER'@'localhost';
SQL
}

step::state() {
  want::packages mariadb-server
  want::file /etc/mysql/mariadb.conf.d/90-muster.cnf 0644 <<'CONF'
# Written by muster. What slurmdbd asks for: room to roll up months of jobs in one transaction.
[mysqld]
bind-address = 127.0.0.1
innodb_buffer_pool_size = 1G
innodb_log_file_size = 64M
innodb_lock_wait_timeout = 900
max_allowed_packet = 16M
CONF
  step::checking && ! command -v mariadbd >/dev/null && return 0
  if secret::stale accounting "$C_ACCOUNTING_PASSWORD_FILE"; then
    step::differs "the password has changed" || true
  fi
  step::checking || secret::fetch accounting "$C_ACCOUNTING_PASSWORD_FILE" "${C_ACCOUNTING_PASSWORD_COMMAND[@]}"
  # slurmdbd must be able to use it, or nothing is changed.
  [[ ! -s $MUSTER_SECRETS/accounting ]] || secret::for_slurm accounting >/dev/null
  want::service mariadb mariadbd database::daemon
  step::checking || wait::until 300 database::answers || step::fail 75 "MariaDB does not answer after 300 s"
  database::login_works || step::differs "$C_ACCOUNTING_USER cannot log in to $C_ACCOUNTING_NAME" || {
    database::prepare
    database::login_works || step::fail 1 "$C_ACCOUNTING_USER still cannot log in"
  }
}

main() { step::run "$@"; }

main "$@"
