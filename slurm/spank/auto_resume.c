/*
 * auto_resume.so gives srun the option --auto-resume=1 that srun has on SageMaker HyperPod.
 *
 * A SPANK plugin runs inside srun. With --auto-resume=1 it replaces srun, before a job step exists,
 * by `muster srun OPTIONS -- PROGRAM ARGUMENTS`, which starts the same step with plain srun, watches
 * it and starts it again on fit nodes. So everything that decides is in muster, and a mistake here
 * can cost no job that does not ask for it.
 *
 *   plugstack.conf:  optional /usr/local/lib/slurm/auto_resume.so muster=/usr/local/bin/muster
 *
 * On HyperPod itself the option exists already; there this plugin does nothing.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(auto_resume, 1)

static const char hyperpod[] = "/opt/sagemaker_cluster";
static char muster[4096] = "/usr/local/bin/muster";
static bool wanted;

static int on_option(int value, const char *argument, int remote)
{
	(void)value;
	(void)remote;
	if (argument == NULL || (strcmp(argument, "0") != 0 && strcmp(argument, "1") != 0)) {
		slurm_error("--auto-resume=%s: neither 0 nor 1", argument ? argument : "");
		return -1;
	}
	wanted = *argument == '1';
	return 0;
}

static struct spank_option option = {
	.name = "auto-resume",
	.arginfo = "0|1",
	.usage = "1: restart this step on fit nodes when it loses one (muster)",
	.has_arg = 1,
	.cb = on_option,
};

/* Called once in srun, and on the nodes in slurmstepd, which is told of srun's options. */
int slurm_spank_init(spank_t spank, int num_words, char **words)
{
	const spank_context_t context = spank_context();

	if (context != S_CTX_LOCAL && context != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	if (access(hyperpod, F_OK) == 0)
		return ESPANK_SUCCESS;
	for (int i = 0; i < num_words; i++) {
		if (strncmp(words[i], "muster=/", 8) == 0 && strlen(words[i] + 7) < sizeof(muster))
			strcpy(muster, words[i] + 7);
		else
			slurm_error("auto_resume.so: '%s' in plugstack.conf is not muster=/PATH", words[i]);
	}
	return spank_option_register(spank, &option);
}

/* This process's own command line, ended by NULL; NULL when it cannot be read. */
static char **command_line(int *count)
{
	FILE *file = fopen("/proc/self/cmdline", "r");
	char **words = NULL, *word = NULL;
	size_t size = 0;
	int num = 0;

	while (file != NULL && getdelim(&word, &size, '\0', file) > 0) {
		char **more = realloc(words, (num + 2) * sizeof(*words));
		if (more == NULL)
			break;
		words = more;
		words[num++] = word;
		words[num] = NULL;
		word = NULL;
		size = 0;
	}
	free(word);
	if (file != NULL)
		fclose(file);
	*count = num;
	return words;
}

/*
 * Called in srun after its options are read: libc's optind is where the program begins. Does not
 * return when the step is to be kept going; a program that cannot be started ends srun with 127.
 */
int slurm_spank_init_post_opt(spank_t spank, int num_words, char **words)
{
	int count = 0, to = 0;
	char **from, **argv;
	sigset_t none;

	(void)spank;
	(void)num_words;
	(void)words;
	if (!wanted || spank_context() != S_CTX_LOCAL)
		return ESPANK_SUCCESS;
	from = command_line(&count);
	argv = calloc(count + 4, sizeof(*argv));
	if (from == NULL || argv == NULL || optind < 1 || optind > count) {
		slurm_error("--auto-resume: the command line cannot be read");
		_exit(71);
	}
	argv[to++] = muster;
	argv[to++] = "srun";
	for (int i = 1; i < count; i++) {
		if (i == optind)
			argv[to++] = "--";
		if (i != optind - 1 || strcmp(from[i], "--") != 0)
			argv[to++] = from[i];
	}
	sigemptyset(&none); /* what srun blocks would stay blocked */
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv(muster, argv);
	slurm_error("--auto-resume: %s: %s. Fix: put muster there on every node, or name another "
		    "place as muster=/PATH in plugstack.conf",
		    muster, strerror(errno));
	_exit(127);
}
