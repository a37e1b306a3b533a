package tidemark;

import java.util.Arrays;
import java.util.Date;
import java.util.NoSuchElementException;

import org.apache.spark.SparkJobInfo;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.status.api.v1.StageData;
import scala.Option;

/** Says when jobs were submitted and launched, in one answer: a question of Python about one job takes ten calls. */
public class JobWaits {
    /**
     * Returns a line for each job of the calling thread's group since the given instant, newest first.
     *
     * A line has the instants at which its first stage was submitted and launched. Clock: the driver's, epoch ms.
     */
    public String since(JavaSparkContext context, long sinceMs) {
        StringBuilder lines = new StringBuilder();
        int[] jobs = context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"));
        Arrays.sort(jobs);
        // The newest come first: the first job from before the batch ends the search.
        for (int at = jobs.length - 1; at >= 0; at--) {
            SparkJobInfo job = context.statusTracker().getJobInfo(jobs[at]);
            // Spark keeps the newest jobs, and a job over no rows has no stage.
            if (job == null || job.stageIds().length == 0) {
                continue;
            }
            // Later stages of a job wait for data, too, so they are not counted.
            int[] stages = (int[]) job.stageIds().clone();
            Arrays.sort(stages);
            StageData stage;
            try {
                stage = context.sc().statusStore().lastStageAttempt(stages[0]);
            } catch (NoSuchElementException late) {
                // Spark writes what happened in a thread of its own, and may be behind.
                continue;
            }
            Option submitted = stage.submissionTime();
            Option launched = stage.firstTaskLaunchedTime();
            if (submitted.isEmpty() || launched.isEmpty()) {
                continue;
            }
            long launchedMs = ((Date) launched.get()).getTime();
            if (launchedMs < sinceMs) {
                break;
            }
            lines.append(((Date) submitted.get()).getTime()).append(' ').append(launchedMs).append('\n');
        }
        return lines.toString();
    }
}
