/* SPDX-License-Identifier: MIT */
/* Writes texts into jobs of a real slurmctld, as a program of a user's own could: no command looks at them first.
 *
 * Each line on stdin is one request: `update JOBID FIELD=HEX ...` or `submit FIELD=HEX ...`; each is answered by a line
 * on stdout, the job's id, or 0 where slurmctld refused it.
 */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *bytes_of(const char *hex)
{
	size_t n = strlen(hex) / 2;
	char *text = calloc(n + 1, 1);

	for (size_t i = 0; i < n; i++) {
		unsigned int one;
		if (sscanf(hex + 2 * i, "%2x", &one) == 1)
			text[i] = (char) one;
	}
	return text;
}

static void set(job_desc_msg_t *job, const char *field, char *text)
{
	if (!strcmp(field, "comment"))
		job->comment = text;
	else if (!strcmp(field, "admin_comment"))
		job->admin_comment = text;
	else if (!strcmp(field, "name"))
		job->name = text;
	else if (!strcmp(field, "wckey"))
		job->wckey = text;
	else if (!strcmp(field, "account"))
		job->account = text;
	else if (!strcmp(field, "alloc_node"))
		job->alloc_node = text;
	else if (!strcmp(field, "work_dir"))
		job->work_dir = text;
	else if (!strcmp(field, "std_out"))
		job->std_out = text;
	else if (!strcmp(field, "network"))
		job->network = text;
	else if (!strcmp(field, "licenses"))
		job->licenses = text;
	else if (!strcmp(field, "features"))
		job->features = text;
	else if (!strcmp(field, "prefer"))
		job->prefer = text;
	else if (!strcmp(field, "reservation"))
		job->reservation = text;
	else if (!strcmp(field, "burst_buffer"))
		job->burst_buffer = text;
	else if (!strcmp(field, "extra"))
		job->extra = text;
	else if (!strcmp(field, "mail_user"))
		job->mail_user = text;
	else if (!strcmp(field, "environment")) {
		job->environment = calloc(2, sizeof(char *));
		job->environment[0] = text;
		job->env_size = 1;
	} else
		free(text);
}

static unsigned int submit(job_desc_msg_t *job)
{
	static char *least[] = {"PATH=/bin", NULL};
	submit_response_msg_t *answer = NULL;
	unsigned int job_id = 0;

	job->user_id = getuid();
	job->group_id = getgid();
	job->script = "#!/bin/sh\nsleep 1\n";
	job->priority = 0; /* held */
	job->min_nodes = job->max_nodes = 1;
	if (!job->work_dir)
		job->work_dir = "/";
	if (!job->environment) {
		job->environment = least;
		job->env_size = 1;
	}
	if (slurm_submit_batch_job(job, &answer) == SLURM_SUCCESS && answer)
		job_id = answer->job_id;
	if (answer)
		slurm_free_submit_response_response_msg(answer);
	return job_id;
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;

	slurm_init(NULL);
	while (getline(&line, &size, stdin) > 0) {
		char *rest = NULL, *word = strtok_r(line, " \n", &rest);
		int is_update = word && !strcmp(word, "update");
		job_desc_msg_t job;
		unsigned int job_id = 0;

		slurm_init_job_desc_msg(&job);
		if (is_update && (word = strtok_r(NULL, " \n", &rest)))
			job.job_id = job_id = (unsigned int) strtoul(word, NULL, 10);
		while ((word = strtok_r(NULL, " \n", &rest))) {
			char *sign = strchr(word, '=');
			if (sign) {
				*sign = '\0';
				set(&job, word, bytes_of(sign + 1));
			}
		}
		if (is_update)
			job_id = slurm_update_job(&job) == SLURM_SUCCESS ? job_id : 0;
		else
			job_id = submit(&job);
		printf("%u\n", job_id);
		fflush(stdout);
	}
	return 0;
}
